"""Single jobs on a run folder: one stage of one iteration, or the test split."""

from __future__ import annotations

from pipeline import runfile
from pipeline.jobs import Job, key_of
from pipeline.run import Runner
from pipeline.walk import Policy, Setup, evaluation, walk
from schemas.errors import DataError
from stages.contract import Artifact


def run_stage(runner: Runner, setup: Setup, stage: str, iteration: int) -> None:
    """Make one stage of one iteration, with what the whole run shares. Everything else must be there already.

    Raises:
        DataError: when an earlier stage has not run; names the command that runs it.
    """
    jobs = walk(runner.recipe, setup, iteration + 1)
    artifact: Artifact | None = None
    hit = False
    try:
        while True:
            job = jobs.send(artifact)
            wanted = _is_wanted(job, stage, iteration)
            hit = hit or wanted
            if wanted or job.slot[0] == "setup":
                artifact = runner.produce(job)
            elif job.stage.NAME == "evaluate":
                artifact = None  # nothing depends on a score
            else:
                artifact = _found(runner, job)
            if job.slot == ("iterations", str(iteration), stage):
                return
    except StopIteration:
        if not hit:
            raise DataError(f"the run ends before iteration {iteration}: there is no {stage} stage to run") from None


def run_test(runner: Runner, split: str) -> list[int]:
    """Score the base and the newest policy on the held-out split; counts the opening. Returns the policies' indices.

    Raises:
        DataError: when no iteration has been trained yet.
    """
    if len(runner.state.policies) < 2:
        raise DataError(f"{runner.folder}: nothing is trained yet. Run `mmgrpo run` first, then open the test split.")
    shared: dict[str, Artifact | None] = {
        name: runner.store.open(name, key) for name, key in runner.state.setup.items()
    }
    chain = _policies(runner, shared)
    indices = sorted({0, len(chain) - 1})
    before = runner.made
    for index in indices:
        runner.produce(evaluation(shared, chain[index], index, split))
    if runner.made > before:
        state = runner.state.model_copy(update={"tests_opened": runner.state.tests_opened + 1})
        runfile.write_run(runner.folder, state)
        runner.state = state
    return indices


def _policies(runner: Runner, shared: dict[str, Artifact | None]) -> list[Policy]:
    """The policy chain of a run as run.json has it."""
    chain = [Policy(runner.state.policies[0], shared["base"], None)]
    for stages, digest in zip(runner.state.iterations, runner.state.policies[1:], strict=False):
        train = runner.store.open("train", stages["train"])
        chain.append(Policy(digest, train, train) if train.manifest.metrics["trained"] else chain[-1])
    return chain


def _is_wanted(job: Job, stage: str, iteration: int) -> bool:
    if stage != job.stage.NAME:
        return False
    if stage == "evaluate":
        return job.slot[2] == str(iteration + 1) or (iteration == 0 and job.slot[2] == "0")
    return job.slot == ("iterations", str(iteration), stage) or job.slot[0] == "setup"


def _found(runner: Runner, job: Job) -> Artifact:
    key = key_of(job.payload(runner.recipe))
    artifact = runner.store.find(job.stage.NAME, key)
    if artifact is None:
        command = f"mmgrpo stage {job.stage.NAME} RECIPE --iteration {job.slot[1]}"
        raise DataError(f"{job.label} has not run for this recipe. Run it first: {command}")
    runner.record(job, key, artifact)
    return artifact
