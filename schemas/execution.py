"""Execution: where and how fast a job runs. Never part of a key: results may not depend on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from schemas.execution_ray import RaySection
from schemas.sections import VariableName

Positive = Annotated[int, Field(gt=0)]
Tracker = Literal["tensorboard", "wandb", "mlflow", "trackio"]


def absolute(path: str | None) -> str | None:
    """A path that holds after a program has changed the working folder."""
    return path and str(Path(path).absolute())


class ServerSection(BaseModel):
    """Where a server of the student's base model is, for `engine = "server"`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    urls: tuple[str, ...] = ()
    """Base URLs (`http://host:8000/v1`) of replicas that serve the same base; a call goes to the least busy."""
    model: str | None = None
    """What the server calls the base model; default: the one that its list of models begins with."""
    api_key_env: VariableName | None = None
    """Name of the environment variable that holds the key. The key itself is written nowhere."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest time of one request."""
    retries: int = Field(default=6, ge=0)
    """Further tries of a request that was dropped, late, or answered with an error of the server's or with what cannot
    be true, after growing pauses. A rate limit costs none: it is waited out."""
    patience_s: float = Field(default=300.0, gt=0)
    """How long every replica may be out of order, or over its rate limit, before the stage ends."""
    requests: Positive = 64
    """Most requests in flight at one replica."""
    adapters: str | None = None
    """`HERE=THERE`: a folder (that of a run, or of all runs) and what it is called where the servers run, which load
    adapters from their own disk. Default: it has the same path on both sides."""

    @field_validator("urls", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("adapters")
    @classmethod
    def _two_folders(cls, value: str | None) -> str | None:
        if value is None:
            return None
        here, _, there = value.partition("=")
        if not here or not there.startswith("/"):
            raise ValueError("expected HERE=THERE, for example runs=/mnt/runs, THERE being an absolute path")
        return f"{Path(here).absolute()}={there.rstrip('/')}"  # a program may change the working folder

    @field_validator("urls")
    @classmethod
    def _no_secrets(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("expected URLs like http://host:8000/v1")
            if "@" in parts.netloc or parts.query or parts.fragment:
                raise ValueError(
                    "a URL holds a user, a password or a query, which would be logged: put the key into an environment "
                    "variable and name that in server.api_key_env"
                )
        if len(set(urls)) != len(urls):
            raise ValueError("the same URL stands there twice")
        return tuple(url.rstrip("/") for url in urls)


class LaunchSection(BaseModel):
    """As how many processes the train stage runs. It starts them itself, by torchrun, and they end with it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    processes: Positive = 1
    """Processes on this node: one a GPU, or gloo on CPUs. `threads` are those of each; default: the node's cores,
    divided."""
    nodes: Positive = 1
    """Nodes that take part. Each runs `mmgrpo stage train` itself, on one shared run folder."""
    node_rank: int | None = Field(default=None, ge=0)
    """Which of them this is; the first, 0, writes. Default: what SLURM_NODEID, JOB_COMPLETION_INDEX (Kubernetes) or
    NODE_RANK says."""
    rendezvous: str | None = None
    """`HOST:PORT` of the first node, where the others find it. Default: MASTER_ADDR and MASTER_PORT."""
    config: str | None = None
    """A file of `accelerate config` that shards the base over the processes by FSDP. What else it says of the launch
    must agree with the settings here."""

    @field_validator("config")
    @classmethod
    def _from_here(cls, value: str | None) -> str | None:
        return absolute(value)

    @field_validator("rendezvous")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        host, _, port = (value or "").rpartition(":")
        if value is not None and not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError("expected HOST:PORT of the first node, for example node1:29500")
        return value

    @model_validator(mode="after")
    def _one_of_the_nodes(self) -> LaunchSection:
        if self.node_rank is not None and self.node_rank >= self.nodes:
            raise ValueError(f"node_rank = {self.node_rank}, but the nodes are 0 to {self.nodes - 1}: see nodes")
        return self

    @property
    def several(self) -> bool:
        """Whether there is anything to start."""
        return self.processes * self.nodes > 1


class Execution(BaseModel):
    """Settings of the machine at hand. Given on the command line or in a TOML file, never in a recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: Literal["transformers", "vllm", "server"] = "transformers"
    """What samples: the embedded engine, vLLM in processes of its own, or an OpenAI-compatible server. Which one it
    was stands in every invocation."""
    vllm: dict[str, Any] = {}
    """Settings that vLLM's engine is given as they are, for `engine = "vllm"`: `tensor_parallel_size`,
    `gpu_memory_utilization`, `max_num_seqs`, …"""
    server: ServerSection = ServerSection()

    executor: Literal["local", "ray"] = "local"
    """Who makes rollouts, evaluations, groups and snapshots: this process (and those of `ingest_workers`), or actors
    and tasks of a Ray cluster. Other stages run here in any case."""
    ray: RaySection = RaySection()

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Positive | None = None
    """Threads of torch and Polars; default: all cores."""
    concurrency: Positive = 128
    """Program runs in flight at once."""
    batch_tokens: Positive = 65_536
    """Budget of key-value tokens of one sampling batch."""
    train_tokens: Positive = 4096
    """Budget of computed tokens of one training micro-batch."""
    train: LaunchSection = LaunchSection()
    """As how many processes the train stage runs."""
    group_rows: Positive = 500_000
    """Invocations that the group stage may hold at once; a larger table is worked by ranges of example_id."""
    ingest_workers: Positive | None = None
    """Processes of `mmgrpo ingest`; default: one for each core, or one where there is little to read."""
    unpacked_gib: Positive = 64
    """Most GiB that a packed file of traces (gzip, zstd, zip, Parquet) may unpack to."""
    unpacked_ratio: Positive = 1000
    """Most bytes that such a file may give for each of its own, beyond the first 64 MiB."""
    cache: str | None = None
    """Folder of converted models; default: `$MMGRPO_CACHE`, else the user's cache folder."""
    progress: Literal["auto", "bar", "plain", "off"] = "auto"
    report_to: tuple[Tracker, ...] = ()
    """Trackers that are told the figures of each optimizer step, by transformers' own integrations. What they need to
    log in stays in their environment variables (WANDB_API_KEY, MLFLOW_TRACKING_URI, …) and is written nowhere."""
    report_dir: str | None = None
    """Folder for what trackers write on this machine; default: `trackers` in the run folder."""

    @field_validator("cache")
    @classmethod
    def _from_here(cls, value: str | None) -> str | None:
        return absolute(value)

    @field_validator("report_to", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value
