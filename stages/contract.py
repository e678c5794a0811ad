"""The contract between stages and whatever runs them.

A stage module has `NAME`, `VERSION`, `recipe_slice(recipe)` and `run(inputs, recipe, execution, out)`. It reads
finished artifacts, writes only through `out`, keeps no globals, and lets no clock into a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from schemas.execution import Execution
from schemas.manifest import Manifest
from schemas.recipe import Recipe


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
