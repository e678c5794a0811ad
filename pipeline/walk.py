"""The walk: the order of a run's jobs, written once. The runner makes each job's artifact; the planner looks it up.

`walk` is a generator: it yields a `Job` and is sent the job's artifact, or None when there is none yet.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.jobs import Job
from pipeline.remote.attached import fetch
from pipeline.snapshots import refuse_forgotten, refuse_missing, refuse_unknown
from pipeline.teaching import Taught, identify_teachers, teacher_job, teacher_roles
from schemas.canonical import digest_file
from schemas.recipe import Recipe
from stages import base, drift, evaluate, examples, group, logprobs, program, prompts, rollout, train
from stages.contract import Artifact
from stages.examples import data_path
from stages.grouping import held_out
from stages.ingest import snapshot
from stages.programs.choice import refuse_few
from stages.training.needs import look, needs
from stages.training.rejection import as_rejection, params_of

if TYPE_CHECKING:
    from stages.programs.load import Program

T = TypeVar("T")
Jobs = Generator[Job, Artifact | None, str | None]


@dataclass(frozen=True)
class Setup:
    """What identifies the things outside the run: the data file, the program, the base model."""

    data: str
    program: dict[str, Any]
    base: dict[str, str]
    teachers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What identifies each teacher of the recipe."""
    traces: dict[str, Any] | None = None
    """The params of the snapshot of traces that the recipe names."""
    canaries: str | None = None
    """Digest of the file of canaries that the recipe names."""


@dataclass(frozen=True)
class Policy:
    """A point of the policy chain. `trained` is the train artifact that made it, None for the base.

    `digest` is None while planning beyond a train stage that has not run.
    """

    digest: str | None
    holder: Artifact | None
    trained: Artifact | None


@dataclass(frozen=True)
class Rolled:
    """What there is to train on: the artifacts of the student and its teachers so far, and what was logged before."""

    student: list[Artifact | None]
    teachers: list[Taught]
    logged: Artifact | None = None
    """The snapshot of traces."""


def identify(recipe: Recipe, root: Path, cache: str | None) -> Setup:
    """Look at the data file, the program and the base model that a recipe names, before anything is paid for.

    Raises:
        RecipeError: when one of them is not there or cannot be loaded, when the recipe gives an adapter to a module
            that the program does not have, has a teacher that does not fit the student, asks for groups or an objective
            that make no sense, or for an optimizer of prompts that is not installed or cannot work on the program.
        DataError: for a teacher's adapter that does not fit the base, or a file of canaries that is none.
    """
    from stages.drifting.canaries import identify_canaries
    from stages.engines.models import resolve_base
    from stages.grouping.rules import rules_of
    from stages.ingest.snapshot import open_snapshot
    from stages.programs.load import identity_of, load_program
    from stages.training.naming import check_declared
    from stages.training.objective import objective_of
    from stages.training.truncated import check_sampling

    for named in (recipe.examples.path, recipe.traces.snapshot or ""):
        fetch(named)
    rules_of(recipe)
    objective_of(recipe)
    check_sampling(recipe)
    refuse_missing(recipe, root)
    refuse_forgotten(recipe, root)
    data = digest_file(data_path(recipe, root))
    program = load_program(recipe, root)
    identity = identity_of(recipe, root, program)
    check_declared(recipe.adapter.modules, identity["modules"])
    _check_prompts(recipe, program)
    model = resolve_base(recipe.model.base, root, Path(cache) if cache else None)
    parts = {"weights": model.weights, "tokenizer": model.tokenizer, "template": model.template}
    teachers = identify_teachers(recipe, root, program, model)
    traces = dict(open_snapshot(recipe, root)[1].payload["params"]) if recipe.traces.snapshot else None
    refuse_unknown(recipe, root)
    canaries = identify_canaries(recipe, root)
    return Setup(data, identity, {"base": model.digest, **parts}, teachers, traces, canaries)


def _check_prompts(recipe: Recipe, program: Program) -> None:
    from stages.prompting.checks import check_installed, check_program

    if recipe.prompts.on:
        check_installed(recipe.prompts)
        check_program(program, recipe.program.factory)


def walk(recipe: Recipe, setup: Setup, iterations: int) -> Jobs:
    """Yield the jobs of a run in order; returns why the run ended early, or None."""
    logged = (yield Job(snapshot, ("setup", "ingest"), setup.traces, {})) if setup.traces else None
    shared = yield from _setup(setup)
    if iterations and shared["examples"] is not None:
        refuse_few(recipe, shared["examples"].manifest.metrics["splits"].get(recipe.examples.train, 0))
    start = shared["base"]
    first = start.manifest.metrics["policy"] if start else None
    chain = [Policy(digest=first, holder=start, trained=None)]
    if recipe.prompts.due(0):
        shared["prompts"] = yield prompting(shared, chain[0], 0)
    every = recipe.run.evaluate_every
    first = (yield from _assessed(recipe, setup, shared, chain[0], 0, base=None)) if every else None
    rolled = Rolled([], [], logged)
    scored = chain[0]
    for iteration in range(iterations):
        if iteration and recipe.prompts.due(iteration):
            shared["prompts"] = yield prompting(shared, chain[-1], iteration)
        policy, ended = yield from _iteration(recipe, setup, shared, chain, rolled)
        if policy is not chain[-1]:
            chain.append(policy)
        last = iteration + 1 == iterations or ended is not None
        if every and (last or (iteration + 1) % every == 0) and not (ended and policy is scored):
            compared = None if policy is chain[0] else first
            yield from _assessed(recipe, setup, shared, policy, iteration + 1, base=compared)
            scored = policy
        if ended:
            return ended
    return None


def prompting(shared: dict[str, Artifact | None], policy: Policy, iteration: int) -> Job:
    """The job that optimizes the prompts before an iteration, with the policy of then, from the prompts of then."""
    artifacts, identities = _sampling_inputs(shared, policy)
    slot = ("iterations", str(iteration), "prompts") if iteration else ("setup", "prompts")
    return Job(prompts, slot, {"iteration": iteration, "policy": policy.digest}, artifacts, identities)


def evaluation(shared: dict[str, Artifact | None], policy: Policy, index: int, split: str) -> Job:
    """The job that scores one policy on one split."""
    artifacts, identities = _sampling_inputs(shared, policy)
    params = {"policy": policy.digest, "split": split}
    return Job(evaluate, ("evaluations", split, str(index)), params, artifacts, identities)


def _assessed(
    recipe: Recipe,
    setup: Setup,
    shared: dict[str, Artifact | None],
    policy: Policy,
    index: int,
    *,
    base: dict[str, Artifact | None] | None,
) -> Generator[Job, Artifact | None, dict[str, Artifact | None]]:
    """Score one policy on the dev split, and look how far it has drifted from the base.

    Args:
        recipe: the run's.
        setup: the run's.
        shared: artifacts of the run.
        policy: to score.
        index: of the policy in the run.
        base: what this returned for the base; None where that is the policy.

    Returns:
        The artifacts by stage.
    """
    split = recipe.examples.dev
    made = {"evaluate": (yield evaluation(shared, policy, index, split))}
    if recipe.evaluate.drift:
        artifacts, identities = _sampling_inputs({"base": shared["base"]}, policy)
        compared = {f"{drift.BASE}{stage}": artifact for stage, artifact in (base or {}).items()}
        params = {"policy": policy.digest, "split": split, "canaries": setup.canaries}
        slot = ("drifts", split, str(index))
        made["drift"] = yield Job(drift, slot, params, {**artifacts, **made, **compared}, identities)
    return made


def _setup(setup: Setup) -> Generator[Job, Artifact | None, dict[str, Artifact | None]]:
    shared: dict[str, Artifact | None] = {}
    shared["examples"] = yield Job(examples, ("setup", "examples"), {"data": setup.data}, {})
    shared["program"] = yield Job(program, ("setup", "program"), {"identity": setup.program}, {})
    shared["base"] = yield Job(base, ("setup", "base"), {"base": setup.base}, {})
    return shared


def _sampling_inputs(
    shared: dict[str, Artifact | None], policy: Policy
) -> tuple[dict[str, Artifact | None], dict[str, str]]:
    """Inputs of a job that samples. Only the policy counts of a train artifact, so a twin adapter is not rescored."""
    if policy.digest is None and shared["base"] is not None:
        return {**shared, "adapter": None}, {}
    if policy.trained is None or policy.digest is None:
        return dict(shared), {}
    return {**shared, "adapter": policy.trained}, {"adapter": policy.digest}


def _iteration(
    recipe: Recipe, setup: Setup, shared: dict[str, Artifact | None], chain: list[Policy], rolled: Rolled
) -> Generator[Job, Artifact | None, tuple[Policy, str | None]]:
    """One iteration from the last policy of the chain; returns the policy after it, and why the run ends here.

    `rolled` has the rollouts of the earlier ones, and gains this one's.
    """
    iteration = len(rolled.student)

    def slot(stage: str) -> tuple[str, ...]:
        return ("iterations", str(iteration), stage)

    policy = chain[-1]
    artifacts, identities = _sampling_inputs(shared, policy)
    if recipe.rollout.choice == "spread" and rolled.student:
        artifacts["earlier"] = rolled.student[-1]
    params = {"iteration": iteration, "policy": policy.digest}
    rolled.student.append((yield Job(rollout, slot("rollout"), params, artifacts, identities)))
    rolled.teachers.append((yield from _taught(recipe, setup, shared, chain, rolled)))
    rollouts = replayed(rolled.student, recipe.run.replay) | teacher_roles(rolled.teachers, recipe.run.replay)
    beside: dict[str, Artifact | None] = {"policies": policy.holder}
    told: dict[str, Any] = {"iteration": iteration}
    if setup.traces is not None and iteration < recipe.traces.iterations:
        rollouts["rollout.snapshot"] = rolled.logged
        beside[held_out.ROLE] = shared["examples"]
        told[held_out.SPLIT] = recipe.examples.train
    grouped = yield Job(group, slot("group"), told, {**rollouts, **beside})
    inputs = {"base": shared["base"], **rollouts, "group": grouped}
    rejecting = params_of(recipe, iteration)
    for job in _scoring(recipe, chain, inputs, slot, rejecting=bool(rejecting)):
        inputs[job.slot[-1]] = yield job
    if policy.trained is not None or (policy.digest is None and shared["base"] is not None):
        inputs["previous"] = policy.trained
    trained = yield Job(train, slot("train"), {"iteration": iteration, **rejecting}, inputs)
    if trained is None:
        return Policy(None, None, None), None
    if trained.manifest.metrics["trained"]:
        return Policy(trained.manifest.metrics["policy"], trained, trained), None
    reason = f"iteration {iteration}: {trained.manifest.metrics['reason']}"
    return policy, reason if recipe.run.when_nothing_to_train == "stop" else None


def _taught(
    recipe: Recipe,
    setup: Setup,
    shared: dict[str, Artifact | None],
    chain: list[Policy],
    rolled: Rolled,
) -> Generator[Job, Artifact | None, Taught]:
    """The teachers' jobs of the iteration that the student rolled last, in order of name."""
    taught: dict[str, Artifact | None] = {}
    for name, about in setup.teachers.items():
        taught[name] = yield teacher_job(
            recipe,
            about,
            iteration=len(rolled.student) - 1,
            rolled=rolled.student[-1],
            sampling=_sampling_inputs(shared, chain[-1]),
            shared=shared,
            start=chain[0].digest,
            student=chain[-1].digest,
        )
    return taught


def replayed(rolled: Sequence[T], replay: int) -> dict[str, T]:
    """The rollouts that an iteration trains on, by role: its own, the last of `rolled`, and `replay` ones before it."""
    newest_first = list(reversed(rolled))[: replay + 1]
    return {f"rollout.back-{back}" if back else "rollout": item for back, item in enumerate(newest_first)}


def _scoring(
    recipe: Recipe,
    chain: list[Policy],
    inputs: Mapping[str, Artifact | None],
    slot: Callable[[str], tuple[str, ...]],
    *,
    rejecting: bool,
) -> list[Job]:
    """The jobs that score the groups with the policies which the train stage needs; often none."""
    grouped = inputs["group"]
    start, policy = chain[0], chain[-1]
    archived = {item.digest: item for item in chain if item.digest}
    facts = look(grouped.file("groups.parquet")) if grouped else None
    if rejecting:
        recipe, facts = as_rejection(recipe), replace(facts, moving=True) if facts else None
    wanted = needs(recipe, facts, policy=policy.digest, fresh=policy is start, archived=archived)

    def job(purpose: str, who: Policy, rows: str) -> Job:
        artifacts, identities = _sampling_inputs({**inputs}, who)
        return Job(logprobs, slot(f"logprobs.{purpose}"), {"policy": who.digest, "rows": rows}, artifacts, identities)

    jobs = [job("old", policy, "all")] if wanted.old else []
    jobs += [job("reference", start, "all")] if wanted.reference else []
    covered = start.digest if wanted.reference else None
    others = [digest for digest in wanted.behaviours if digest != covered]
    return jobs + [job(f"behaviour-{digest[:12]}", archived[digest], "own") for digest in others]
