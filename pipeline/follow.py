"""A process that helps another one with a stage: it reads, computes its share, and writes nothing.

`torchrun` and `accelerate launch` start the same command several times. Process 0 works as ever, with its locks; the
others come here: they find the same job and run the same stage with an `Out` that keeps nothing.
"""

from __future__ import annotations

import time
from pathlib import Path

from pipeline.jobs import Job, key_of
from pipeline.recipes import LoadedRecipe
from pipeline.store import SCRATCH, Store
from pipeline.walk import identify, walk
from schemas.errors import DataError
from schemas.execution import Execution
from stages.contract import Artifact, Inputs

PATIENCE_S = 600.0
"""How long process 0 may take to make what comes before the stage."""


class KeepsNothing:
    """The `Out` of a process that follows: it sees the leader's scratch folder and changes nothing."""

    def __init__(self, partial: Path) -> None:
        self.scratch = partial / SCRATCH

    def commit_shard(self, name: str, file: Path) -> None:
        """The leader commits."""

    def committed(self, prefix: str = "") -> dict[str, Path]:  # noqa: ARG002 (the contract's signature)
        """Nothing of its own."""
        return {}

    def drop(self, prefix: str) -> None:
        """The leader drops."""

    def exclude(self, reason: str, count: int = 1) -> None:
        """The leader counts."""

    def progress(self, done: int, total: int, unit: str, **figures: float | str) -> None:
        """The leader tells."""

    def telemetry(self, **figures: float) -> None:
        """The leader measures."""


def follow_stage(loaded: LoadedRecipe, execution: Execution, folder: Path, stage: str, iteration: int) -> None:
    """Take part in one stage of one iteration, which process 0 makes.

    Raises:
        DataError: when what comes before the stage is not there.
    """
    store = Store(folder / "artifacts")
    jobs = walk(loaded.recipe, identify(loaded.recipe, loaded.root, execution.cache), iteration + 1)
    artifact: Artifact | None = None
    while True:
        job = jobs.send(artifact)
        if job.slot == ("iterations", str(iteration), stage):
            break
        artifact = None if job.of_policy else _found(store, job, loaded)
    key = key_of(job.payload(loaded.recipe))
    if store.find(stage, key) is None:
        artifacts = {role: artifact for role, artifact in job.artifacts.items() if artifact is not None}
        out = KeepsNothing(store.root / stage / f".{key[:16]}.partial")
        quiet = execution.model_copy(update={"report_to": ()})
        job.stage.run(Inputs(artifacts, job.params, loaded.root), loaded.recipe, quiet, out)


def _found(store: Store, job: Job, loaded: LoadedRecipe) -> Artifact:
    """The artifact of an earlier job; of the set-up, which process 0 may be making, after some waiting."""
    key, until = key_of(job.payload(loaded.recipe)), time.monotonic() + PATIENCE_S
    while (artifact := store.find(job.stage.NAME, key)) is None:
        if job.slot[0] != "setup" or time.monotonic() > until:
            raise DataError(f"{job.label} has not run for this recipe: `mmgrpo stage {job.stage.NAME} RECIPE` first")
        time.sleep(0.2)
    return artifact
