"""The runner: makes the artifacts of a run one after another, skips those that are there, and keeps run.json."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline import runfile
from pipeline.alike import only_alike
from pipeline.choices import chosen, load_state
from pipeline.jobs import Job, key_of
from pipeline.launching.making import run_here, threaded
from pipeline.launching.settings import check_launch, crowded, refuse_nodes
from pipeline.locks import hold
from pipeline.manifests import check_files
from pipeline.metering import meter_of
from pipeline.on_ray.cluster import Cluster, cluster_of
from pipeline.progress import Reporter
from pipeline.provenance import provenance
from pipeline.recipes import LoadedRecipe
from pipeline.runfile import RunFile
from pipeline.store import Store
from pipeline.tombstones import refuse_deleted
from pipeline.walk import identify, walk
from schemas.errors import DataError, MmgrpoError, StageError
from schemas.execution import Execution
from schemas.recipe import Recipe
from stages.contract import Artifact, Inputs

_DAILY = {"parse_failed", "context_overflow"}
_STORAGE_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ENOTDIR,
    errno.EEXIST,
}
_STORAGE_WORDS = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EROFS)))


@dataclass
class Runner:
    """One process's work on one run folder."""

    loaded: LoadedRecipe
    execution: Execution
    folder: Path
    reporter: Reporter
    cluster: Cluster | None = None
    """Shares the work of stages that can share it; None: this process does it all."""
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
        artifact = self.made_or_found(job)
        self.record(job, self.key(job), artifact)
        return artifact

    def made_or_found(self, job: Job) -> Artifact:
        """The job's artifact, without any word in run.json."""
        key = self.key(job)
        artifact = self.store.find(job.stage.NAME, key) or self._make(job, key)
        refuse_deleted(artifact)
        return artifact

    def key(self, job: Job) -> str:
        """The job's key. All its inputs must be there."""
        return key_of(job.payload(self.recipe))

    def record(self, job: Job, key: str, artifact: Artifact) -> None:
        """Write the job's key into run.json, if it is news there."""
        state = chosen(self.state, job, key, artifact)
        if state != self.state:
            state = only_alike(state, job, artifact, self.store)
            runfile.write_run(self.folder, state)
            self.state = state

    def end(self, reason: str | None) -> None:
        """Write into run.json that the walk is at its end, and why it came early; None when it did not."""
        state = self.state.model_copy(update={"ended": reason})
        if state.own_digest() != runfile.read_run(self.folder).digest:  # a changed recipe may change no key
            runfile.write_run(self.folder, state)
            self.state = state

    def _make(self, job: Job, key: str) -> Artifact:
        started, clock, meter = datetime.now(UTC), time.monotonic(), meter_of(job.stage.NAME, self.execution)
        payload = job.payload(self.recipe)
        self.reporter.start(job.label)
        artifacts = {role: artifact for role, artifact in job.artifacts.items() if artifact is not None}
        self._check_bytes(artifacts.values())
        here = {role: Artifact(artifact.path, artifact.manifest) for role, artifact in artifacts.items()}
        try:
            with self.store.begin(job.stage.NAME, key, self.reporter, meter) as out:
                artifact = self.store.find(job.stage.NAME, key) or out.taken_up()
                if artifact is None:
                    with nullcontext() if self.cluster is None else self.cluster.workers(meter) as workers:
                        inputs = Inputs(here, job.params, self.loaded.root, workers)
                        metrics = run_here(job.stage, key, inputs, self.recipe, self.execution, out=out)
                    artifact = out.finish(
                        stage=job.stage.NAME,
                        version=job.stage.VERSION,
                        key=key,
                        payload=payload,
                        metrics=metrics,
                        provenance=provenance(
                            started,
                            time.monotonic() - clock,
                            self.store.place(self.folder),
                            root=self.loaded.root,
                            execution=threaded(self.execution) if job.stage.NAME == "train" else self.execution,
                        ),
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


def run_all(runner: Runner, iterations: int, after: Callable[[Job], str | None]) -> str | None:
    """Walk through the whole run. Returns why it ended early, or None.

    Args:
        runner: makes the artifacts.
        iterations: how many.
        after: called behind each job; the run ends there when it says why.
    """
    refuse_nodes(runner.execution, "mmgrpo run")
    setup = identify(runner.recipe, runner.loaded.root, runner.execution.cache)
    jobs = walk(runner.recipe, setup, iterations)
    artifact: Artifact | None = None
    ended: str | None = None
    while ended is None:
        try:
            job = jobs.send(artifact)
        except StopIteration as end:
            ended = end.value
            break
        artifact = runner.produce(job)
        ended = after(job)
    runner.end(ended)
    return ended


def summary(artifact: Artifact) -> str:
    """A finished artifact in a few words."""
    shown = (
        "examples",
        "refilled",
        "mixed_examples",
        "rollouts",
        "groups",
        "members",
        "steps",
        "trials",
        "score_before",
        "score",
        "loss",
        "kl_to_base",
        "reward",
        "mean",
        "reason",
    )
    metrics = artifact.manifest.metrics
    told = {name: metrics[name] for name in shown if isinstance(metrics.get(name), (int, float, str))}
    parts = [f"{name.replace('_', ' ')} {_number(value)}" for name, value in told.items()]
    if "statuses" in metrics and metrics.get("mean_reward") is not None:
        # A failed run has no reward: without their share, the mean reward would flatter.
        parts.append(
            f"{metrics['statuses'].get('ok', 0)} of them ok with mean reward {_number(metrics['mean_reward'])}"
        )
    if metrics.get("modules_never_called"):
        parts.append(f"modules never called: {', '.join(metrics['modules_never_called'])}")
    parts += [f"ALARM: {alarm}" for alarm in metrics.get("alarms", [])]
    return ", ".join(["done", *parts, *_failures(metrics)])


def _failures(metrics: dict[str, Any]) -> list[str]:
    """How many runs failed, and one error. Of completions that do not parse, which are daily bread, only if all did."""
    failed = {status: count for status, count in metrics.get("statuses", {}).items() if status != "ok"}
    if not failed or ("ok" in metrics["statuses"] and failed.keys() <= _DAILY):
        return []
    counts = ", ".join(f"{count} {status}" for status, count in failed.items())
    error = " ".join((metrics.get("first_error") or "").split())
    return [f"failed: {counts}; for example {error[:200]}{'…' if len(error) > 200 else ''}"]


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _of_storage(error: Exception) -> bool:
    """Whether the disk is the cause. Libraries that write files themselves tell it in words alone."""
    if isinstance(error, MmgrpoError):
        return False
    return getattr(error, "errno", None) in _STORAGE_ERRORS or any(words in str(error) for words in _STORAGE_WORDS)


def absolute(loaded: LoadedRecipe, execution: Execution) -> tuple[LoadedRecipe, Execution]:
    """The same with paths that hold in every working folder."""
    cache = {"cache": str(Path(execution.cache).absolute())} if execution.cache else {}
    return replace(loaded, root=loaded.root.absolute()), execution.model_copy(update=cache)


@contextmanager
def open_run(loaded: LoadedRecipe, execution: Execution, folder: Path, reporter: Reporter) -> Iterator[Runner]:
    """A runner that holds the run's lock.

    Raises:
        LockedError: when another process works on this run.
        RecipeError: when the train stage could not be launched as the execution settings say.
        StageError: when the folder cannot be written or the disk is full.
    """
    check_launch(execution, loaded.recipe)
    if note := crowded(execution):
        reporter.note(note)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            hold(folder / ".lock", f"run folder {folder}"),
            cluster_of(execution, loaded.recipe, reporter.note) as cluster,
        ):
            if cluster is not None:  # whose processes begin in folders of their own
                loaded, execution = absolute(loaded, execution)
            yield Runner(loaded, execution, folder, reporter, cluster)
    except Exception as error:
        if not _of_storage(error):
            raise
        raise StageError(
            f"cannot write in {folder}: {error}. Nothing finished was harmed: make room or give write access, "
            "then run the same command again."
        ) from error
