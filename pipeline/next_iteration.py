"""One more iteration of a run: the first of which anything is missing, and nothing behind it."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.jobs import Job, key_of
from pipeline.launching.settings import refuse_nodes
from pipeline.run import Runner
from pipeline.walk import identify, walk
from stages.contract import Artifact


def run_next(runner: Runner, after: Callable[[Job], str | None]) -> int | None:
    """Make what is missing of the first unfinished iteration; calls `after` behind each job.

    An iteration ends with the scores of the policy that it made; those of the base belong to the first. Where `after`
    gives a reason to stop, the run ends with it.

    Returns:
        Which iteration it was; None when none is left.
    """
    refuse_nodes(runner.execution, "mmgrpo next")
    setup = identify(runner.recipe, runner.loaded.root, runner.execution.cache)
    jobs = walk(runner.recipe, setup, runner.recipe.run.iterations)
    target: int | None = None
    artifact: Artifact | None = None
    try:
        while True:
            job = jobs.send(artifact)
            place = iteration_of(job)
            if target is not None and place > target:
                return target
            if target is None and runner.store.find(job.stage.NAME, key_of(job.payload(runner.recipe))) is None:
                target = place
            artifact = runner.produce(job)
            if reason := after(job):
                runner.end(reason)
                return target
    except StopIteration as end:
        runner.end(end.value)
    return target


def iteration_of(job: Job) -> int:
    """The iteration that a job belongs to. Set-up, the scores of the base and its drift are of the first."""
    kind, *place = job.slot
    if kind == "iterations":
        return int(place[0])
    return 0 if kind == "setup" else max(int(place[1]) - 1, 0)
