"""Where work is shared by Ray, for `executor = "ray"`. Never part of a key: what is made does not depend on it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

from schemas.sections import VariableName

Positive = Annotated[int, Field(gt=0)]


class RaySection(BaseModel):
    """The cluster, what an actor takes of it, and what becomes of work whose actor died."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str | None = None
    """`auto` or `HOST:PORT` of a cluster that this machine belongs to. Default: that of `$RAY_ADDRESS`, else one on
    this machine, which is started when work is to be shared and ends with the command."""
    actors: Positive | None = None
    """Actors at most, each with an engine of its own; those that find no place wait for the autoscaler. Default: as
    many as the cluster has room for at the start."""
    cpus: float = Field(default=1.0, gt=0)
    """Cores that Ray sets aside for an actor, and threads that it computes with where `threads` is not given."""
    gpus: float | None = Field(default=None, ge=0)
    """GPUs of an actor, or a share of one; default: one where the cluster has any and the engine can use it."""
    memory_gib: float | None = Field(default=None, gt=0)
    """Memory that Ray sets aside for an actor; default: none."""
    examples: Positive | None = None
    """Examples that an actor is given at once; default: enough for `concurrency` runs twice over, or half an actor's
    even share where that is less."""
    tries: Positive = 3
    """How many actors may die of one example before the stage ends."""
    patience_s: float = Field(default=600.0, gt=0)
    """How long to wait where no actor finds a place, before the stage ends."""
    env: tuple[VariableName, ...] = ()
    """Further environment variables that actors are given, by name: what the program itself needs. Those that the
    recipe names, and the settings of Hugging Face, are given in any case. No value is written anywhere."""
    object_store_mib: int = Field(default=256, ge=80)
    """Shared memory of a cluster that is started here."""

    @field_validator("address")
    @classmethod
    def _inside(cls, value: str | None) -> str | None:
        if value is not None and value.startswith("ray://"):
            raise ValueError(
                "Ray's client cannot pass shards on as they are made: run the command on a machine of the cluster, for "
                "example with `ray job submit`, and give ray.address=auto"
            )
        if value is not None and value != "auto" and not value.rpartition(":")[2].isdecimal():
            raise ValueError("expected auto or HOST:PORT, for example 10.0.0.1:6379")
        return value

    @field_validator("env", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value
