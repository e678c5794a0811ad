"""One program run: the program on one example, then the metric, each ending in a status and losing nothing."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from schemas.canonical import canonical_json, storable
from stages.engines.batcher import Batcher, Clock
from stages.engines.signals import ContextOverflowError
from stages.programs.branches import enter_task, in_thread_of
from stages.programs.imports import describe
from stages.programs.jsonable import json_text
from stages.programs.load import Program
from stages.programs.metric import Example, MetricError, read_score
from stages.programs.recorder import Recorder
from stages.programs.rows import call_views
from stages.programs.session import Caller, Session, in_thread


@dataclass(frozen=True)
class Job:
    """One program run to make. Values are canonical JSON, decoded afresh for each run."""

    example_id: str
    index: int
    """rollout_index or sample."""
    rollout_id: str
    seed: int
    """63-bit; every draw of the run follows from it."""
    inputs: str
    labels: str | None
    metadata: str | None


@dataclass(frozen=True)
class Outcome:
    """How a run ended: status, error text, output and parts as canonical JSON."""

    status: str
    error: str | None = None
    output: str | None = None
    score: float | None = None
    parts: str | None = None


@dataclass(frozen=True)
class Finished:
    """A finished run and its rows of the invocations table."""

    job: Job
    outcome: Outcome
    invocations: list[dict[str, Any]]


RunLoop = Callable[[Coroutine[Any, Any, Any], "LiveRun"], "Future[Any]"]
"""Runs a run's coroutine in the event loop that the stage's runs share."""


@dataclass(eq=False)
class LiveRun:
    """A run in flight."""

    job: Job
    program: Program
    session: Session
    batcher: Batcher
    attempt: int
    """0, or 1 when the engine failed the first time."""
    recorder: Recorder = field(init=False)
    clock: Clock = field(init=False)
    caller: Caller = field(init=False)
    output: str | None = None
    scoring: bool = False
    """Whether the program has ended and the metric runs."""
    task: Future[Any] | None = None

    def __post_init__(self) -> None:
        self.recorder, self.clock = Recorder(self.job.rollout_id), Clock()
        self.caller = Caller(self.session, self.batcher, self.recorder, self.clock, self.job.seed)

    def start(self, run_loop: RunLoop) -> None:
        """Begin, in a thread or in the event loop; the outcome is posted to the batcher's inbox."""
        if self.program.is_async:
            self.task = run_loop(self._in_loop(), self)
        else:
            in_thread(lambda: self.batcher.post((self, self._in_thread(run_loop))))

    def end(self) -> None:
        """Nothing that still runs of it is recorded or served from now on."""
        self.caller.over = True
        self.recorder.seal()
        if self.task is not None:
            self.task.cancel()

    @property
    def expired(self) -> bool:
        """Whether it spent more time on its own than the recipe allows."""
        return self.clock.spent > self.session.timeout_s

    def timed_out(self) -> Outcome:
        """The outcome of an expired run."""
        limit = f"{self.session.timeout_s:g} s (program.timeout_s)"
        if self.scoring:
            return Outcome("metric_error", f"the metric took longer than {limit}", self.output)
        return Outcome("timeout", f"the program ran longer than {limit} without a pending LM call")

    def _in_thread(self, run_loop: RunLoop) -> Outcome:
        try:
            with in_thread_of(self.recorder.branch):
                output = self.program.invoke(json.loads(self.job.inputs), self.caller)
            self._accept(output)
        except BaseException as error:  # noqa: BLE001 - whatever ends a program is an outcome of this run
            return self._program_failed(error)
        try:
            value = self.program.metric(*self._metric_arguments(output))
            return self._scored(run_loop(_awaited(value), self).result() if inspect.isawaitable(value) else value)
        except BaseException as error:  # noqa: BLE001 - as above
            return self._metric_failed(error)

    async def _in_loop(self) -> None:
        enter_task(self.recorder.branch)
        self.batcher.post((self, await self._outcome()))

    async def _outcome(self) -> Outcome:
        try:
            output = await self.program.invoke(json.loads(self.job.inputs), self.caller)
            self._accept(output)
        except BaseException as error:  # noqa: BLE001 - as above
            return self._program_failed(error)
        try:
            arguments = self._metric_arguments(output)
            value = await asyncio.wrap_future(in_thread(lambda: self.program.metric(*arguments)))
            return self._scored(await value if inspect.isawaitable(value) else value)
        except BaseException as error:  # noqa: BLE001 - as above
            return self._metric_failed(error)

    def _accept(self, output: Any) -> None:
        if inspect.iscoroutine(output):
            output.close()
            raise TypeError("the program returned a coroutine: write it as `async def`")
        self.output = json_text(output)
        self.scoring = True
        self.clock.restart()

    def _metric_arguments(self, output: Any) -> tuple[Example, Any, list[dict[str, Any]]]:
        job = self.job
        labels, metadata = json.loads(job.labels or "{}"), json.loads(job.metadata or "{}")
        return Example(job.example_id, json.loads(job.inputs), labels, metadata), output, call_views(self.recorder)

    def _program_failed(self, error: BaseException) -> Outcome:
        if isinstance(error, ContextOverflowError):
            return Outcome("context_overflow", str(error))
        if _consists_of(error, self.caller.parse_errors):
            return Outcome("parse_failed", describe(error))
        return Outcome("program_error", describe(error))

    def _metric_failed(self, error: BaseException) -> Outcome:
        text = storable(str(error)) if isinstance(error, MetricError) else describe(error)
        return Outcome("metric_error", text, self.output)

    def _scored(self, value: Any) -> Outcome:
        score = read_score(value)
        parts = canonical_json(score.parts) if score.parts else None
        return Outcome("ok", None, self.output, score.score, parts)


def _consists_of(error: BaseException, known: Sequence[BaseException]) -> bool:
    """Whether it is one of the known, or a group of nothing else (as `asyncio.TaskGroup` raises it)."""
    if isinstance(error, BaseExceptionGroup):
        return all(_consists_of(part, known) for part in error.exceptions)
    return any(error is one for one in known)


async def _awaited(value: Any) -> Any:
    return await value
