"""Running a stage: here, or the train stage as the processes that the execution settings ask for."""

from __future__ import annotations

import gc
import sys
from typing import Any, Protocol

from pipeline.launching.description import LINK, Description
from pipeline.launching.link import Link
from pipeline.launching.said import Said
from pipeline.launching.settings import Launch, launch_of
from pipeline.launching.team import started
from schemas.execution import Execution
from schemas.recipe import Recipe
from stages import train
from stages.contract import Inputs, Out, Stage

BEAT_S = 0.2
"""How often processes are looked at."""


class Kept(Out, Protocol):
    """The `Out` of a command, which keeps account of what it spends."""

    def beat(self) -> None:
        """Note what was spent, if some seconds have passed since the last note."""


def run_here(
    stage: Stage, key: str, inputs: Inputs, recipe: Recipe, execution: Execution, *, out: Kept
) -> dict[str, Any]:
    """Run a stage with its lock held. Returns its metrics.

    Raises:
        MmgrpoError: what the stage raises, of whichever process.
    """
    launch = launch_of(execution) if stage.NAME == train.NAME else None
    if launch is None:
        return stage.run(inputs, recipe, execution, out)
    return _in_processes(launch, key, Description(inputs, recipe, threaded(execution), out.scratch.parent), out)


def threaded(execution: Execution) -> Execution:
    """The settings with the threads that each process has."""
    launch = launch_of(execution)
    return execution if launch is None else execution.model_copy(update={"threads": launch.threads})


def _in_processes(launch: Launch, key: str, description: Description, out: Kept) -> dict[str, Any]:
    _make_room()
    with started(launch, description, key) as team, Link(team.folder / LINK, out) as link:
        team.begin()
        said = Said(team.logs)
        while not team.wait(BEAT_S, link.serve):
            said.tell()
            out.beat()  # a step may take minutes
        link.serve(0)  # what was asked last
        team.check()
        said.tell(last=True)
        if link.metrics is None:
            raise team.lost()
        return link.metrics


def _make_room() -> None:
    """Give back the GPU memory of what sampled in this process: the processes need it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
