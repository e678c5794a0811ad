"""The contract between stages and whatever runs them.

A stage module has `NAME`, `VERSION`, `recipe_slice(recipe)` and `run(inputs, recipe, execution, out)`. It reads
finished artifacts, writes only through `out`, keeps no globals, and lets no clock into a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from schemas.execution import Execution
from schemas.manifest import Manifest
from schemas.recipe import Recipe

State = TypeVar("State")
Task = TypeVar("Task")
Result = TypeVar("Result")


class Workers(Protocol):
    """Processes elsewhere that share a stage's work.

    Which of them does what, and how often it is tried, changes no result: they are given all that they need, write
    nothing, and hand back what the stage commits. Functions are named ones of modules, or `functools.partial` of
    such: they are sent by name.
    """

    def stream(
        self,
        make: Callable[[], State],
        step: Callable[[State, Mapping[str, Task]], Iterator[tuple[str, Result]]],
        tasks: Mapping[str, Task],
        *,
        runs: int,
    ) -> Iterator[tuple[str, Result]]:
        """What becomes of each task, by its name, in the order in which they are done.

        A worker has a state, made by `make` for its first tasks and kept for further calls with the same `make`. A
        task that was handed back is done; the others of a worker that died go to others.

        Args:
            make: makes the state of a worker, with its engine.
            step: does some tasks, and hands back each as soon as it is done.
            tasks: by name.
            runs: program runs that a task comes to.

        Raises:
            MmgrpoError: as `make` and `step` do, in words; StageError when workers died over and over of one task.
        """

    def map(self, step: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """What a step without a state makes of each task, in their order. Few tasks are held at once.

        Raises:
            MmgrpoError: as `stream`.
        """


@dataclass(frozen=True)
class Artifact:
    """A finished artifact: a folder, read-only, and its manifest."""

    folder: Path
    manifest: Manifest
    bring: Callable[[Path, Manifest], None] | None = field(default=None, compare=False, repr=False)
    """Brings the bytes of an artifact that lies elsewhere into its folder, once they are asked for."""

    @property
    def path(self) -> Path:
        """The artifact's folder, with all its bytes in it."""
        if self.bring is not None:
            self.bring(self.folder, self.manifest)
        return self.folder

    @property
    def digest(self) -> str:
        """Digest of the artifact's files (telemetry left out)."""
        return self.manifest.digest

    def file(self, name: str) -> Path:
        """A file of the artifact by its relative name."""
        return self.path / name

    def files(self, prefix: str) -> list[Path]:
        """The files below `prefix`, sorted by name."""
        return [self.path / name for name in sorted(self.manifest.files) if name.startswith(prefix)]


@dataclass(frozen=True)
class Inputs:
    """What a job is given: finished artifacts by role, and the parameters that are part of its key."""

    artifacts: Mapping[str, Artifact]
    params: Mapping[str, Any] = field(default_factory=dict)
    root: Path = Path()
    """Folder of the recipe: where its relative paths start, and the last entry of the import path."""
    workers: Workers | None = field(default=None, compare=False)
    """Who shares the work; None where this process does it all."""

    def __getstate__(self) -> dict[str, Any]:
        """As workers are given it: they have none of their own."""
        return {**self.__dict__, "workers": None}

    def __getitem__(self, role: str) -> Artifact:
        return self.artifacts[role]


class Out(Protocol):
    """Where a stage writes. Nothing else of a stage's doing survives it."""

    @property
    def scratch(self) -> Path:
        """A folder for work in progress (checkpoints, files about to be committed).

        It survives a killed process and is gone once the artifact is complete.
        """

    def commit_shard(self, name: str, file: Path) -> None:
        """Move a finished file (best written in `scratch`) into the artifact under `name`, durably and atomically.

        A shard committed once is there for good: a restarted stage sees it and does not make it again.
        """

    def committed(self, prefix: str = "") -> dict[str, Path]:
        """The shards committed so far whose names start with `prefix`, by name."""

    def drop(self, prefix: str) -> None:
        """Leave the shards below `prefix` out of the finished artifact (they were compacted into others)."""

    def exclude(self, reason: str, count: int = 1) -> None:
        """Count rows left out, by reason; the counts stand in the manifest and the report."""

    def progress(self, done: int, total: int, unit: str, **figures: float | str) -> None:
        """Say how far the stage is. Figures are shown as they are, for example tokens_per_second."""

    def telemetry(self, **figures: float) -> None:
        """Add timings, tokens and costs to the artifact's telemetry (summed by name); never part of a digest."""


class Stage(Protocol):
    """A stage module, as the runner sees it."""

    NAME: str
    VERSION: int

    def recipe_slice(self, recipe: Recipe) -> dict[str, Any]:
        """The part of the recipe that decides this stage's result: what its key covers."""

    def run(self, inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
        """Do the job; returns metrics (JSON values) for the manifest."""
