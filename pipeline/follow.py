"""Helping another process or node with a stage: reading, computing a share, and writing nothing.

`torchrun` and `accelerate launch` start the same command several times. Process 0 works as ever, with its locks; the
others come here: they find the same job and run the same stage with an `Out` that keeps nothing. So do the nodes of
`train.nodes` behind the first: each finds the job and starts its own processes for it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.jobs import Job, key_of
from pipeline.launching.description import Description
from pipeline.launching.making import threaded
from pipeline.launching.nothing import KeepsNothing
from pipeline.launching.settings import Launch
from pipeline.launching.team import started
from pipeline.recipes import LoadedRecipe
from pipeline.store import Store
from pipeline.walk import identify, walk
from schemas.errors import DataError
from schemas.execution import Execution
from stages.contract import Artifact, Inputs

PATIENCE_S = 600.0
"""How long process 0 may take to make what comes before the stage."""
LOOK_S = 0.5
"""How often the processes of a node are looked at."""
GRACE_S = 30.0
"""How long they may go on once the artifact is there."""


@dataclass(frozen=True)
class Followed:
    """The job that another process or node makes."""

    job: Job
    key: str
    store: Store
    loaded: LoadedRecipe

    def is_made(self) -> bool:
        """Whether there is nothing left to take part in."""
        return self.store.find(self.job.stage.NAME, self.key) is not None

    @property
    def partial(self) -> Path:
        """The artifact in the making."""
        return self.store.root / self.job.stage.NAME / f".{self.key[:16]}.partial"

    @property
    def inputs(self) -> Inputs:
        """What the job reads."""
        artifacts = {role: artifact for role, artifact in self.job.artifacts.items() if artifact is not None}
        return Inputs(artifacts, self.job.params, self.loaded.root)


def follow_stage(loaded: LoadedRecipe, execution: Execution, folder: Path, stage: str, iteration: int) -> None:
    """Take part in one stage of one iteration, which process 0 makes.

    Raises:
        DataError: when what comes before the stage is not there.
    """
    found = _find(loaded, execution, folder, stage, iteration)
    if not found.is_made():
        quiet = execution.model_copy(update={"report_to": ()})
        found.job.stage.run(found.inputs, loaded.recipe, quiet, KeepsNothing(found.partial))


def follow_node(loaded: LoadedRecipe, execution: Execution, folder: Path, launch: Launch, iteration: int) -> bool:
    """Take part in the train stage of an iteration with the processes of this node; the first node makes it.

    Returns:
        Whether there was anything to take part in.

    Raises:
        DataError: when what comes before the stage is not there.
        StageError: when the nodes do not meet, or a process of this one fails.
    """
    found = _find(loaded, execution, folder, "train", iteration)
    if found.is_made():
        return False
    description = Description(found.inputs, loaded.recipe, threaded(execution), found.partial)
    with started(launch, description, found.key) as team:
        team.begin()
        late: float | None = None
        while not team.wait(LOOK_S, time.sleep):
            if late is None and found.is_made():  # without us, where an earlier try had come to its last move
                late = time.monotonic() + GRACE_S
            if late is not None and time.monotonic() > late:
                return True
        team.check()
    return True


def _find(loaded: LoadedRecipe, execution: Execution, folder: Path, stage: str, iteration: int) -> Followed:
    store = Store(folder / "artifacts")
    jobs = walk(loaded.recipe, identify(loaded.recipe, loaded.root, execution.cache), iteration + 1)
    artifact: Artifact | None = None
    while True:
        job = jobs.send(artifact)
        if job.slot == ("iterations", str(iteration), stage):
            return Followed(job, key_of(job.payload(loaded.recipe)), store, loaded)
        artifact = None if job.of_policy else _found(store, job, loaded)


def _found(store: Store, job: Job, loaded: LoadedRecipe) -> Artifact:
    """The artifact of an earlier job; of the set-up, which process 0 may be making, after some waiting."""
    key, until = key_of(job.payload(loaded.recipe)), time.monotonic() + PATIENCE_S
    while (artifact := store.find(job.stage.NAME, key)) is None:
        if job.slot[0] != "setup" or time.monotonic() > until:
            raise DataError(f"{job.label} has not run for this recipe: `mmgrpo stage {job.stage.NAME} RECIPE` first")
        time.sleep(0.2)
    return artifact
