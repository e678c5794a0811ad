"""Execution: where and how fast a job runs. Never part of a key: results may not depend on it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Positive = Annotated[int, Field(gt=0)]
Tracker = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class Execution(BaseModel):
    """Settings of the machine at hand. Given on the command line or in a TOML file, never in a recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Positive | None = None
    """Threads of torch and Polars; default: all cores."""
    concurrency: Positive = 128
    """Program runs in flight at once."""
    batch_tokens: Positive = 65_536
    """Budget of key-value tokens of one sampling batch."""
    train_tokens: Positive = 4096
    """Budget of computed tokens of one training micro-batch."""
    group_rows: Positive = 500_000
    """Invocations that the group stage may hold at once; a larger table is worked by ranges of example_id."""
    cache: str | None = None
    """Folder of converted models; default: `$MMGRPO_CACHE`, else the user's cache folder."""
    progress: Literal["auto", "bar", "plain", "off"] = "auto"
    report_to: tuple[Tracker, ...] = ()
    """Trackers that are told the figures of each optimizer step, by transformers' own integrations. What they need to
    log in stays in their environment variables (WANDB_API_KEY, MLFLOW_TRACKING_URI, …) and is written nowhere."""
    report_dir: str | None = None
    """Folder for what trackers write on this machine; default: `trackers` in the run folder."""

    @field_validator("report_to", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value
