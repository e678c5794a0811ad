"""What an artifact records of its own making, beside its results: one file for every attempt at it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.errors import DataError
from schemas.foreign import read_json
from schemas.manifest import TELEMETRY

ATTEMPTS = f"{TELEMETRY}attempts/"
"""Folder of attempts in an artifact: `0000.json`, `0001.json`, …"""


class Attempt(BaseModel):
    """One process's work on an artifact, from the moment it began or took it up. What is not known is null."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seconds: float
    """By the clock."""
    core_seconds: float | None
    """Processor time of the process and of those that it started. Null where several processes shared the work, of
    which each knows its own alone."""
    cores: int | None
    """That the process may use."""
    gpus: int | None
    """GPUs that it held; 0 where it is known to have used none."""
    device: str | None
    """Name of the GPU; null without one."""
    finished: bool = False
    """Whether the artifact was finished by it. Otherwise the process was stopped, at most some seconds after this."""

    @property
    def gpu_seconds(self) -> float | None:
        """Time by the clock, times the GPUs held."""
        return None if self.gpus is None else self.seconds * self.gpus


def read_attempts(folder: Path) -> list[Attempt]:
    """The attempts at an artifact, finished or not, in order; empty where none was recorded.

    Raises:
        DataError: naming the file, when one is damaged.
    """
    return [_read(path) for path in sorted((folder / ATTEMPTS).glob("*.json"))]


def _read(path: Path) -> Attempt:
    try:
        return Attempt.model_validate(read_json(path))
    except ValueError as error:
        known = error.errors(include_url=False, include_input=False) if isinstance(error, ValidationError) else []
        first = known[0]["msg"] if known else error
        raise DataError(
            f"{path}: no record of an attempt ({first}). Restore it. In a .partial folder it may be deleted "
            "instead, since it holds timings only"
        ) from None


def next_attempt(folder: Path) -> int:
    """The number of the attempt that begins now."""
    taken = [int(path.stem) for path in (folder / ATTEMPTS).glob("*.json") if path.stem.isdecimal()]
    return max(taken, default=-1) + 1


def write_attempt(folder: Path, number: int, attempt: Attempt, scratch: Path) -> Path:
    """Write an attempt at an artifact whole, by way of a draft in `scratch`; returns its file."""
    path, draft = folder / ATTEMPTS / f"{number:04}.json", scratch / "attempt.tmp"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft.write_text(attempt.model_dump_json() + "\n", encoding="utf-8")
    return draft.replace(path)


def sum_attempts(attempts: Sequence[Attempt]) -> dict[str, float]:
    """Seconds of all attempts, by the names of the telemetry; what is not known of one is not known of all."""
    figures: dict[str, list[float | None]] = {
        "seconds": [attempt.seconds for attempt in attempts],
        "core_seconds": [attempt.core_seconds for attempt in attempts],
        "gpu_seconds": [attempt.gpu_seconds for attempt in attempts],
    }
    known = {name: [value for value in values if value is not None] for name, values in figures.items()}
    return {name: round(sum(values), 3) for name, values in known.items() if len(values) == len(attempts)}
