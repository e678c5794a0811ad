"""The runner: makes the artifacts of a run one after another, skips those that are there, and keeps run.json."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pipeline import runfile
from pipeline.jobs import Job, key_of
from pipeline.locks import hold
from pipeline.progress import Reporter
from pipeline.provenance import provenance
from pipeline.recipes import LoadedRecipe
from pipeline.runfile import RunFile
from pipeline.store import Store, check_files
from pipeline.walk import Policy, Setup, evaluation, identify, walk
from schemas.errors import DataError, StageError
from schemas.execution import Execution
from schemas.recipe import Recipe
from stages.contract import Artifact, Inputs

_STORAGE_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ENOTDIR,
    errno.EEXIST,
}


@dataclass
class Runner:
    """One process's work on one run folder."""

    loaded: LoadedRecipe
    execution: Execution
    folder: Path
    reporter: Reporter
    made: int = 0
    """Artifacts made by this process, the ones found finished not counted."""
    state: RunFile = field(init=False)
    store: Store = field(init=False)
    _intact: set[Path] = field(default_factory=set)
    """Artifacts whose bytes this process has written or compared with their digests."""

    def __post_init__(self) -> None:
        self.store = Store(self.folder / "artifacts")
        self.state = load_state(self.folder, self.recipe)

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe."""
        return self.loaded.recipe

    def produce(self, job: Job) -> Artifact:
        """The job's artifact: found, or made now. Its key is recorded in run.json."""
        payload = job.payload(self.recipe)
        key = key_of(payload)
        artifact = self.store.find(job.stage.NAME, key) or self._make(job, key)
        self.record(job, key, artifact)
        return artifact

    def record(self, job: Job, key: str, artifact: Artifact) -> None:
        """Write the job's key into run.json, if it is news there."""
        state = chosen(self.state, job, key, artifact)
        if state != self.state:
            runfile.write_run(self.folder, state)
            self.state = state

    def _make(self, job: Job, key: str) -> Artifact:
        started, clock = datetime.now(UTC), time.monotonic()
        payload = job.payload(self.recipe)
        self.reporter.start(job.label)
        artifacts = {role: artifact for role, artifact in job.artifacts.items() if artifact is not None}
        self._check_bytes(artifacts.values())
        inputs = Inputs(artifacts, job.params, self.loaded.root)
        try:
            with self.store.begin(job.stage.NAME, key, self.reporter) as out:
                artifact = self.store.find(job.stage.NAME, key) or out.taken_up()
                if artifact is None:
                    metrics = job.stage.run(inputs, self.recipe, self.execution, out)
                    seconds = time.monotonic() - clock
                    out.telemetry(seconds=seconds)
                    artifact = out.finish(
                        stage=job.stage.NAME,
                        version=job.stage.VERSION,
                        key=key,
                        payload=payload,
                        metrics=metrics,
                        provenance=provenance(started, seconds),
                    )
        finally:
            self.reporter.stop()
        self.made += 1
        self._intact.add(artifact.path)
        self.reporter.finish(summary(artifact))
        return artifact

    def _check_bytes(self, artifacts: Iterable[Artifact]) -> None:
        """Compare the bytes of inputs with their digests: a flipped byte can read back silently wrong.

        Raises:
            DataError: naming the files.
        """
        for artifact in artifacts:
            if artifact.path in self._intact:
                continue
            if problems := check_files(artifact.path, artifact.manifest):
                lines = "\n".join(f"  - {problem}" for problem in problems)
                raise DataError(
                    f"an input is damaged:\n{lines}\nRestore it, or delete {artifact.path} and run again: "
                    "it will be made anew."
                )
            self._intact.add(artifact.path)


def run_all(runner: Runner, iterations: int, after: Callable[[Job], None]) -> str | None:
    """Walk through the whole run; calls `after` behind each job. Returns why it ended early, or None."""
    setup = identify(runner.recipe, runner.loaded.root, runner.execution.cache)
    jobs = walk(runner.recipe, setup, iterations)
    artifact: Artifact | None = None
    try:
        while True:
            job = jobs.send(artifact)
            artifact = runner.produce(job)
            after(job)
    except StopIteration as end:
        ended: str | None = end.value
    state = runner.state.model_copy(update={"ended": ended})
    if state != runner.state:
        runfile.write_run(runner.folder, state)
        runner.state = state
    return ended


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


def load_state(folder: Path, recipe: Recipe) -> RunFile:
    """The run's state, or a new one for this recipe; the recipe in it is the one at hand."""
    resolved = recipe.model_dump(mode="json")
    if not (folder / runfile.NAME).exists():
        return RunFile(name=recipe.name, recipe=resolved)
    state = runfile.read_run(folder)
    if state.name != recipe.name:
        raise DataError(
            f"{folder} holds the run of recipe '{state.name}', not '{recipe.name}'. Give another folder with --run-dir."
        )
    return state.model_copy(update={"recipe": resolved})


def chosen(state: RunFile, job: Job, key: str, artifact: Artifact) -> RunFile:
    """The run's state with the job's key in it. When that changes a key, everything behind it is taken out."""
    place, name = job.slot[0], job.slot[-1]
    if place == "evaluations":
        scores = {**state.evaluations.get(job.slot[1], {}), job.params["policy"]: key}
        return state.model_copy(update={"evaluations": {**state.evaluations, job.slot[1]: scores}})
    if place == "setup":
        if state.setup.get(name) != key:
            state = state.model_copy(
                update={"setup": {**state.setup, name: key}, "iterations": (), "policies": (), "evaluations": {}}
            )
        if name == "base" and not state.policies:
            state = state.model_copy(update={"policies": (artifact.manifest.metrics["policy"],)})
        return state
    return _chosen_in_iteration(state, int(job.slot[1]), name, key, artifact)


def _chosen_in_iteration(state: RunFile, index: int, name: str, key: str, artifact: Artifact) -> RunFile:
    stages = dict(state.iterations[index]) if index < len(state.iterations) else {}
    if stages.get(name) != key:
        kept = {stage: stages[stage] for stage in _before(name) if stage in stages}
        policies = state.policies[: index + 1]
        evaluations = {
            split: {policy: score for policy, score in scores.items() if policy in policies}
            for split, scores in state.evaluations.items()
        }
        state = state.model_copy(
            update={
                "iterations": (*state.iterations[:index], {**kept, name: key}),
                "policies": policies,
                "evaluations": evaluations,
            }
        )
    if name == "train" and len(state.policies) == index + 1:
        policy = artifact.manifest.metrics["policy"] if artifact.manifest.metrics["trained"] else state.policies[-1]
        state = state.model_copy(update={"policies": (*state.policies, policy)})
    return state


def _before(name: str) -> list[str]:
    order = ["rollout", "group", "train"]
    return order[: order.index(name)]


def summary(artifact: Artifact) -> str:
    """A finished artifact in a few words."""
    shown = ("examples", "rollouts", "mean_reward", "groups", "members", "steps", "loss", "mean", "reason")
    metrics = artifact.manifest.metrics
    parts = [f"{name.replace('_', ' ')} {_number(metrics[name])}" for name in shown if metrics.get(name) is not None]
    if metrics.get("modules_never_called"):
        parts.append(f"modules never called: {', '.join(metrics['modules_never_called'])}")
    return ", ".join(["done", *parts])


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextmanager
def open_run(loaded: LoadedRecipe, execution: Execution, folder: Path, reporter: Reporter) -> Iterator[Runner]:
    """A runner that holds the run's lock.

    Raises:
        LockedError: when another process works on this run.
        StageError: when the folder cannot be written or the disk is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with hold(folder / ".lock", f"run folder {folder}"):
            yield Runner(loaded, execution, folder, reporter)
    except OSError as error:
        if error.errno not in _STORAGE_ERRORS and "No space left" not in str(error):
            raise
        raise StageError(
            f"cannot write in {folder}: {error}. Nothing finished was harmed: make room or give write access, "
            "then run the same command again."
        ) from error
