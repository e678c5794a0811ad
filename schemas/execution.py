"""Execution: where and how fast a job runs. Never part of a key: results may not depend on it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]


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
