"""Single jobs on a run folder: one stage of one iteration, or the test split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pipeline import runfile
from pipeline.jobs import Job, key_of
from pipeline.release.openings import note_opening, openings
from pipeline.release.records import released
from pipeline.run import Runner
from pipeline.walk import Setup, walk
from schemas.decisions import Decision
from schemas.errors import DataError
from schemas.recipe import Recipe
from stages.contract import Artifact

_SEVERAL = {"teacher": "group", "logprobs": "train"}
"""Stages of which an iteration has any number of jobs, and the stage behind them."""


def run_stage(
    runner: Runner, setup: Setup, stage: str, iteration: int, after: Callable[[Job], object] = lambda _: None
) -> int:
    """Make one stage of one iteration, with what the whole run shares. Everything else must be there already.

    `after` is called behind each job that was made, or found for it.

    Returns:
        How many jobs the stage has there: none where `logprobs` has nothing to score or the recipe no teacher, several
        for several policies or teachers.

    Raises:
        DataError: when an earlier stage has not run; names the command that runs it.
    """
    _refuse_needless(runner.recipe, stage, iteration)
    jobs = walk(runner.recipe, setup, iteration + 1)
    artifact: Artifact | None = None
    hits = 0
    try:
        while True:
            job = jobs.send(artifact)
            if stage in _SEVERAL and job.slot == ("iterations", str(iteration), _SEVERAL[stage]):
                return hits
            wanted = _is_wanted(job, stage, iteration)
            hits += wanted
            if wanted or (job.slot[0] == "setup" and job.stage.NAME != "prompts"):
                artifact = runner.produce(job)
                after(job)
            elif job.of_policy and not _drift_needs(job, stage, iteration):
                artifact = None  # nothing else depends on it
            else:
                artifact = _found(runner, job)
                after(job)
            if wanted and stage not in {"evaluate", "drift", *_SEVERAL}:
                return hits
    except StopIteration:
        if not hits and not (stage == "drift" and not runner.recipe.evaluate.drift):
            raise DataError(f"the run ends before iteration {iteration}: there is no {stage} stage to run") from None
    return hits


def _refuse_needless(recipe: Recipe, stage: str, iteration: int) -> None:
    if stage == "prompts" and not recipe.prompts.due(iteration):
        raise DataError(
            f"the recipe makes no prompts before iteration {iteration}: see prompts.optimizer and prompts.every"
        )


def run_test(runner: Runner, setup: Setup, split: str) -> list[int]:
    """Score the base, the released and the newest policy on the held-out split; counts the opening.

    Returns:
        Their indices. A released policy that is not in the run's chain any more is left out.

    Raises:
        DataError: when an iteration is to be trained and none has been yet, or when the recipe, the program, the data
            or the model is not what the run was made with: its policies must be scored by the program that they were
            trained in.
    """
    trained = len(runner.state.policies) - 1
    if trained < min(1, runner.recipe.run.iterations) or trained < 0:
        raise DataError(f"{runner.folder}: nothing is trained yet. Run `mmgrpo run` first, then open the test split.")
    scored = _evaluations(runner, setup, trained)
    standing = released(runner.folder)
    known = {0, trained, *(place for place, item in enumerate(runner.state.policies) if _is(item, standing))}
    wanted = {int(job.slot[2]): job for job in scored if int(job.slot[2]) in known}
    _score(runner, list(wanted.values()), split)
    return list(wanted)


def _is(policy: str, standing: Decision | None) -> bool:
    return standing is not None and standing.policy == policy


def score_last(runner: Runner, setup: Setup, split: str) -> Artifact:
    """Score what the run ends with, its last policy with its prompts, on a split; a test split counts as opened.

    Raises:
        DataError: when the run is not complete.
    """
    return _score(runner, _evaluations(runner, setup, len(runner.state.policies) - 1)[-1:], split)[-1]


def _score(runner: Runner, jobs: list[Job], split: str) -> list[Artifact]:
    """The evaluations of dev, done for another split; counted as an opening where they are news to this run."""
    moved = [
        replace(job, slot=(job.slot[0], split, job.slot[2]), params={**job.params, "split": split}) for job in jobs
    ]
    if split == runner.recipe.examples.test:
        _count_opening(runner, split, [runner.key(job) for job in moved])
    return [runner.produce(job) for job in moved]


def _count_opening(runner: Runner, split: str, keys: list[str]) -> None:
    """Count an opening before it is made, in a file of its own: run.json may be lost and made again."""
    known = runner.state.evaluations.get(split, {}).values()
    news = [key for key in keys if key not in known]
    opened = note_opening(runner.folder, split, news) if news else False
    count = max(runner.state.tests_opened + opened, len(openings(runner.folder)))
    if count != runner.state.tests_opened:
        runner.state = runner.state.model_copy(update={"tests_opened": count})
        runfile.write_run(runner.folder, runner.state)


def _evaluations(runner: Runner, setup: Setup, iterations: int) -> list[Job]:
    """The evaluations of a run in order, one of every policy, once everything that they depend on is found."""
    each = runner.recipe.run.model_copy(update={"evaluate_every": 1})
    jobs = walk(runner.recipe.model_copy(update={"run": each}), setup, iterations)
    scored: list[Job] = []
    found: list[tuple[Job, str, Artifact]] = []
    artifact: Artifact | None = None
    while True:
        try:
            job = jobs.send(artifact)
        except StopIteration:
            break
        if job.stage.NAME == "evaluate":
            scored.append(job)
            continue  # no policy depends on a score: what is sent in its place does not matter
        if job.of_policy:
            continue
        key = key_of(job.payload(runner.recipe))
        artifact = runner.store.find(job.stage.NAME, key)
        if artifact is None:
            raise DataError(
                f"{job.label} has not run for the recipe, program, data and model as they are now: `mmgrpo plan` "
                "says what changed. Undo that, or run `mmgrpo run` first."
            )
        found.append((job, key, artifact))
    for entry in found:
        runner.record(*entry)
    return scored


def _drift_needs(job: Job, stage: str, iteration: int) -> bool:
    """Whether it is what the drift stage of an iteration needs: the scores of its policy, and all of the base."""
    return stage == "drift" and job.slot[2] in {"0", str(iteration + 1)}


def _is_wanted(job: Job, stage: str, iteration: int) -> bool:
    if stage != job.stage.NAME:
        return False
    if job.of_policy:
        return job.slot[2] == str(iteration + 1) or (iteration == 0 and job.slot[2] == "0")
    if stage == "prompts":
        return int(job.params["iteration"]) == iteration
    return job.slot[:2] == ("iterations", str(iteration)) or job.slot[0] == "setup"


def _found(runner: Runner, job: Job) -> Artifact:
    key = key_of(job.payload(runner.recipe))
    artifact = runner.store.find(job.stage.NAME, key)
    if artifact is None:
        index = max(int(job.slot[2]) - 1, 0) if job.of_policy else job.params.get("iteration", job.slot[1])
        command = f"mmgrpo stage {job.stage.NAME} RECIPE --iteration {index}"
        raise DataError(f"{job.label} has not run for this recipe. Run it first: {command}")
    runner.record(job, key, artifact)
    return artifact
