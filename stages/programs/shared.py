"""Program runs that other processes make: what each of them is given, and what becomes of what they hand back.

A task is an example with all its runs. A worker makes the shards of it that this process would have made, with the
same code, and hands back their bytes; this process commits them. So an artifact has one writer.
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from schemas.errors import DataError, RecipeError, StageError
from schemas.recipe import Recipe
from stages.contract import Inputs, Out, Workers
from stages.programs.desk import Desk, Failure, Shape, all_failed, failures
from stages.programs.live import FACTORY
from stages.programs.load import Program, difference
from stages.programs.run import Job
from stages.programs.runner import run_programs
from stages.programs.session import Session
from stages.programs.sources import code_digests, file_digests

Jobs = Mapping[str, Sequence[Job]]
"""Runs by example_id."""


@dataclass(frozen=True)
class Shared:
    """The workers of a stage, and how each of them comes by the program."""

    workers: Workers
    load: Callable[[], Program]
    check: Callable[[], None]
    """Called by each of them before: whether it has what this process has."""


def shared_by(inputs: Inputs, recipe: Recipe, load: Callable[[], Program]) -> Shared | None:
    """Who shares the runs of a stage; None where this process makes them all.

    Raises:
        RecipeError: for a program that only this process has.
    """
    if inputs.workers is None:
        return None
    if recipe.program.factory == FACTORY:
        raise RecipeError(
            "the program is an object of this Python process, so that no other one can run it. Leave "
            "execution.executor at 'local', or give the program and its metric an import path in a recipe"
        )
    return Shared(inputs.workers, load, Same(inputs, recipe))


@dataclass(frozen=True)
class Same:
    """Whether another machine sees the same files as the one that shares its work out.

    Raises:
        DataError: when called there, naming what is missing or another.
    """

    inputs: Inputs
    recipe: Recipe

    def __call__(self) -> None:
        """Look at folders first, then at the code of the program."""
        folders = [self.inputs.root, *(artifact.path for artifact in self.inputs.artifacts.values())]
        if lost := [folder for folder in folders if not folder.is_dir()]:
            raise DataError(
                f"{lost[0]} is not there on {socket.gethostname()}, where a worker runs. The recipe's folder and the "
                "run folder must be at the same paths on all machines; where the run folder is an address, so must "
                "$MMGRPO_CACHE, which holds its mirror. Put them on a file system that all machines share"
            )

    def code(self) -> None:
        """Compare the program's code, once it is loaded, with what the run was made for."""
        section, recorded = self.recipe.program, self.inputs["program"].file("program.json")
        if not recorded.is_file():
            return
        identity = json.loads(recorded.read_bytes())
        modules = [path.partition(":")[0] for path in (section.factory, section.metric)]
        found = {"code": code_digests(modules), "files": file_digests(self.inputs.root, section.code)}
        for part, here in found.items():
            there = identity.get(part, {})
            if here == there:
                continue
            changed = sorted(name for name in here.keys() & there.keys() if here[name] != there[name])
            what = [f"other bytes in {', '.join(changed)}"] if changed else []
            what += filter(None, [difference(here, there, "the worker", "the run")])
            raise DataError(
                f"the program is another one on {socket.gethostname()}, where a worker runs: {'; '.join(what)}. "
                "Install the same code on all machines, or put it into the recipe's folder"
            )


@dataclass(frozen=True)
class Crew:
    """What a worker is sent, to make its state of."""

    load: Callable[[], Program]
    check: Callable[[], None]
    open_: Callable[[], Session]
    shape: Shape
    concurrency: int

    def __call__(self) -> Bench:
        """The program and the engine, in the process of a worker."""
        self.check()
        program = self.load()
        if isinstance(self.check, Same):
            self.check.code()
        return Bench(program, self.open_(), self.shape, self.concurrency)


@dataclass(frozen=True)
class Bench:
    """A worker's state."""

    program: Program
    session: Session
    shape: Shape
    concurrency: int


@dataclass(frozen=True)
class Part:
    """What came of an example: its shards, and what they cost."""

    files: tuple[tuple[str, bytes], ...]
    """Name and bytes, in the order in which they are to be committed."""
    figures: Mapping[str, float]
    """Telemetry."""
    failed: tuple[Failure, ...] = ()
    """Its runs, where every one of them failed for a reason that is not the model's."""


@dataclass
class Box:
    """The `Out` of a worker: it keeps what it is given until it is emptied."""

    scratch: Path
    _files: list[tuple[str, bytes]] = field(default_factory=list)
    _figures: dict[str, float] = field(default_factory=dict)

    def commit_shard(self, name: str, file: Path) -> None:
        """Keep the bytes of a file."""
        self._files.append((name, file.read_bytes()))

    def telemetry(self, **figures: float) -> None:
        """Add figures."""
        for name, value in figures.items():
            self._figures[name] = self._figures.get(name, 0.0) + value

    @property
    def filled(self) -> bool:
        """Whether anything was committed since it was emptied."""
        return bool(self._files)

    def emptied(self, failed: Sequence[Failure] = ()) -> Part:
        """What was kept, which is then gone."""
        part = Part(tuple(self._files), dict(self._figures), tuple(failed))
        self._files.clear()
        self._figures.clear()
        return part

    def committed(self, prefix: str = "") -> dict[str, Path]:  # noqa: ARG002 - the contract's signature
        """Nothing: this process commits nothing."""
        return {}

    def drop(self, prefix: str) -> None:
        """Nothing is there to be dropped."""

    def exclude(self, reason: str, count: int = 1) -> None:
        """Runs are not excluded."""

    def progress(self, done: int, total: int, unit: str, **figures: float | str) -> None:
        """It is told by who commits."""


def make_runs(bench: Bench, jobs: Jobs) -> Iterator[tuple[str, Part]]:
    """Make the runs of some examples; hands back each example as soon as its last run is done."""
    left, sizes = [job for runs in jobs.values() for job in runs], {name: len(runs) for name, runs in jobs.items()}
    box = Box(Path(tempfile.mkdtemp(prefix="mmgrpo-")))
    try:
        desk = Desk(box, bench.shape, bench.session, total=len(left), sizes=sizes)
        for finished in run_programs(bench.program, left, bench.session, bench.concurrency):
            desk.take(finished)
            if box.filled:
                yield finished.job.example_id, box.emptied()
        for runs in desk.held:
            failed = failures(runs)
            desk.commit(runs)
            yield runs[0].job.example_id, box.emptied(failed)
    finally:
        shutil.rmtree(box.scratch, ignore_errors=True)


@dataclass
class Collector:
    """Commits what workers hand back."""

    out: Out
    shape: Shape
    crew: Crew
    workers: Workers
    started: float = field(default_factory=time.monotonic)
    tokens: float = 0.0

    def collect(self, jobs: Jobs, *, finished: int, total: int, some_before: bool) -> None:
        """Have the runs made and commit them, with the rule of `Desk` for runs that all failed.

        Args:
            jobs: those that are left.
            finished: runs that were there before.
            total: of all waves so far.
            some_before: whether examples were committed before.

        Raises:
            StageError: when all runs failed for a reason that can be mended, or workers died over and over.
        """
        held: list[Part] = []
        most = max(map(len, jobs.values()))
        for name, part in self.workers.stream(self.crew, make_runs, jobs, runs=most):
            finished += len(jobs[name])
            self.tokens += part.figures.get("completion_tokens", 0.0)
            rate = self.tokens / max(time.monotonic() - self.started, 1e-9)
            self.out.progress(finished, total, self.shape.unit, tokens_per_second=round(rate, 1))
            if part.failed:
                held.append(part)
            else:
                self._commit(part)
                some_before = True
        if held and not some_before:
            raise StageError(all_failed([failure for part in held for failure in part.failed], self.shape.unit))
        for part in held:
            self._commit(part)

    def _commit(self, part: Part) -> None:
        for name, data in part.files:
            draft = self.out.scratch / "shard.parquet"
            draft.write_bytes(data)
            self.out.commit_shard(name, draft)
        self.out.telemetry(**part.figures)
