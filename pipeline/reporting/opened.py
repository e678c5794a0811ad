"""A run as the report reads it: run.json, its recipe, and the artifacts that it chose, as far as they are there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from pipeline.jobs import stage_of
from pipeline.partial import TELEMETRY_FILE, read_sums
from pipeline.runfile import RunFile, read_run, resolved
from pipeline.stages_in_order import STAGES as JOBS
from pipeline.store import Store
from pipeline.tombstones import tombstone_of
from schemas.parquet import read_frame
from schemas.recipe import Recipe
from schemas.table import TableSpec
from stages.contract import Artifact

STAGES = ("ingest", *JOBS)
"""All stages, in the order in which a run meets them."""
ITERATED = ("rollout", "group", "train")


class ReadStore(Store):
    """A store to read from at one moment: artifacts that were deleted by request are not there, manifests read once."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._found: dict[tuple[str, str], Artifact | None] = {}

    def find(self, stage: str, key: str) -> Artifact | None:
        """The finished artifact of a key, or None: when it is not there, or its bytes were deleted by request."""
        if (stage, key) not in self._found:
            self._found[stage, key] = None if self.deleted(stage, key) else super().find(stage, key)
        return self._found[stage, key]

    def deleted(self, stage: str, key: str) -> bool:
        """Whether only a tombstone is left of an artifact."""
        return tombstone_of(self.folder(stage, key)) is not None


@dataclass(frozen=True)
class OpenRun:
    """A run folder, opened for reading."""

    folder: Path
    state: RunFile
    recipe: Recipe
    store: ReadStore

    def stage(self, iteration: int, stage: str) -> Artifact | None:
        """The artifact of a stage of an iteration, by its name in run.json, or None while it is not finished."""
        key = self.state.iterations[iteration].get(stage)
        return self.store.find(stage_of(stage), key) if key else None

    def chosen(self) -> Iterator[tuple[str, int | None, str]]:
        """Every artifact that the run chose: (stage, iteration or None, key), each once, in the order of the run."""
        for stage in STAGES:
            if stage in self.state.setup:
                yield stage, None, self.state.setup[stage]
        for iteration, keys in enumerate(self.state.iterations):
            ordered = sorted(keys, key=lambda name: (STAGES.index(stage_of(name)), name))
            yield from ((stage_of(name), iteration, keys[name]) for name in ordered)
        for stage, by_split in (("evaluate", self.state.evaluations), ("drift", self.state.drifts)):
            keys_of_policies = [key for by_policy in by_split.values() for key in by_policy.values()]
            yield from ((stage, None, key) for key in dict.fromkeys(keys_of_policies))


def open_run(folder: Path) -> OpenRun:
    """Open a run folder.

    Raises:
        DataError: when it is not a run folder, or holds a recipe that this release does not know.
    """
    state = read_run(folder)
    return OpenRun(folder, state, resolved(folder, state), ReadStore(folder / "artifacts"))


def table_files(artifact: Artifact, spec: TableSpec) -> list[Path]:
    """The files of an artifact that hold rows of a table, sorted by name."""
    entries = artifact.manifest.files
    return [artifact.file(name) for name in sorted(entries) if entries[name].table == spec.name]


def frame(artifact: Artifact, spec: TableSpec, columns: list[str]) -> pl.DataFrame:
    """Some columns of a table of an artifact. Rows were checked when they were written.

    Raises:
        ContractError: naming the file, when it cannot be read.
    """
    return read_frame(table_files(artifact, spec), spec, columns=columns, validate=False)


def telemetry(artifact: Artifact) -> dict[str, float]:
    """The telemetry of an artifact, by name; empty when it recorded none.

    Raises:
        DataError: naming the file, when it is not a flat JSON object of numbers.
    """
    if TELEMETRY_FILE not in artifact.manifest.files:
        return {}
    return {name: float(value) for name, value in read_sums(artifact.file(TELEMETRY_FILE)).items()}
