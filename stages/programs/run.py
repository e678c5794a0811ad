"""One program run: the program on one example, then the metric, each ending in a status and losing nothing."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from schemas.canonical import canonical_json, storable
from schemas.discretion import discreet
from stages.engines.batcher import Batcher
from stages.engines.pending import Clock
from stages.engines.signals import ContextOverflowError
from stages.programs.branches import enter_task, in_thread_of
from stages.programs.imports import describe
from stages.programs.jsonable import json_text
from stages.programs.judge import JudgeCaller
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
    """A finished run, its rows of the invocations table, and those of its metric's calls (of the last try)."""

    job: Job
    outcome: Outcome
    invocations: list[dict[str, Any]]
    judge_calls: list[dict[str, Any]] = field(default_factory=list)
    metric_retries: int = 0
    """Tries of the metric that failed and were made again. Some fail by the clock: no part of a result."""
    seconds: float = field(default=0.0, compare=False)
    """Wall clock from the program's start to its end, the metric left out: no part of a result."""


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
    judge: JudgeCaller | None = None
    """The LM calls of the metric, of the try at hand; None while the program runs."""
    tries: int = 0
    """Of the metric that came to nothing."""
    tasks: list[Future[Any]] = field(default_factory=list)
    """What runs of it in the event loop."""
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    """When the program had its output; None while it runs, and where it failed."""
    _value: Any = None

    def __post_init__(self) -> None:
        self.recorder, self.clock = Recorder(self.job.rollout_id), Clock()
        self.caller = Caller(self.session, self.batcher, self.recorder, self.clock, self.job.seed)

    def start(self, run_loop: RunLoop) -> None:
        """Begin, in a thread or in the event loop; (run, tries, outcome) is posted to the batcher's inbox."""
        if self.program.is_async:
            self.tasks.append(run_loop(self._in_loop(run_loop), self))
        else:
            in_thread(lambda: self.batcher.post((self, 0, self._in_thread(run_loop))))

    def score_again(self, run_loop: RunLoop) -> bool:
        """Try the metric once more, where the recipe has tries left; says whether."""
        if self.judge is None or self.tries >= self.session.judging.section.retries:
            return False
        self._stop_scoring()
        self.tries += 1
        tries, judge = self.tries, self._start_scoring()
        in_thread(lambda: self.batcher.post((self, tries, self._score(judge, run_loop))))
        return True

    def end(self) -> None:
        """Nothing that still runs of it is recorded or served from now on."""
        self.caller.over = True
        self.recorder.seal()
        self._stop_scoring()

    @property
    def expired(self) -> bool:
        """Whether it spent more time on its own than the recipe allows."""
        return self.clock.spent > (self.session.timeout_s if self.judge is None else self.session.metric_timeout_s)

    @property
    def seconds(self) -> float:
        """How long the program took, or has taken so far."""
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    def timed_out(self) -> Outcome:
        """The outcome of an expired run."""
        if self.judge is None:
            limit = f"{self.session.timeout_s:g} s (program.timeout_s)"
            return Outcome("timeout", f"the program ran longer than {limit} without a pending LM call")
        named = "program.timeout_s" if self.session.judging.section.timeout_s is None else "metric.timeout_s"
        limit = f"{self.session.metric_timeout_s:g} s ({named})"
        return Outcome("metric_error", f"the metric took longer than {limit}", self.output)

    def _in_thread(self, run_loop: RunLoop) -> Outcome:
        try:
            with in_thread_of(self.recorder.branch):
                output = self.program.invoke(json.loads(self.job.inputs), self.caller)
            judge = self._accept(output)
        except BaseException as error:  # noqa: BLE001 - whatever ends a program is an outcome of this run
            return self._program_failed(error)
        return self._score(judge, run_loop)

    async def _in_loop(self, run_loop: RunLoop) -> None:
        enter_task(self.recorder.branch)
        try:
            output = await self.program.invoke(json.loads(self.job.inputs), self.caller)
            judge = self._accept(output)
        except BaseException as error:  # noqa: BLE001 - as above
            self.batcher.post((self, 0, self._program_failed(error)))
            return
        in_thread(lambda: self.batcher.post((self, 0, self._score(judge, run_loop))))

    def _accept(self, output: Any) -> JudgeCaller:
        if inspect.iscoroutine(output):
            output.close()
            raise TypeError("the program returned a coroutine: write it as `async def`")
        self.ended = time.monotonic()
        self.output, self._value = json_text(output), output
        return self._start_scoring()

    def _start_scoring(self) -> JudgeCaller:
        self.clock = Clock()
        self.judge = JudgeCaller(self.session, self.batcher, self.job.rollout_id, self.clock)
        return self.judge

    def _stop_scoring(self) -> None:
        if self.judge is not None:
            self.judge.over = True
            self.judge.recorder.seal()
        for task in self.tasks:
            task.cancel()
        self.tasks.clear()

    def _score(self, judge: JudgeCaller, run_loop: RunLoop) -> Outcome:
        """One try of the metric."""
        try:
            with in_thread_of(judge.recorder.branch):
                value = self.program.metric(*self._metric_arguments(), judge)
            if inspect.isawaitable(value):
                task = run_loop(_awaited(value, judge), self)
                self.tasks.append(task)
                value = task.result()
            return self._scored(value)
        except BaseException as error:  # noqa: BLE001 - whatever ends a metric is an outcome of this run
            text = storable(discreet(str(error))) if isinstance(error, MetricError) else describe(error)
            return Outcome("metric_error", text, self.output)

    def _metric_arguments(self) -> tuple[Example, Any, list[dict[str, Any]]]:
        job = self.job
        labels, metadata = json.loads(job.labels or "{}"), json.loads(job.metadata or "{}")
        return Example(job.example_id, json.loads(job.inputs), labels, metadata), self._value, call_views(self.recorder)

    def _program_failed(self, error: BaseException) -> Outcome:
        if isinstance(error, ContextOverflowError):
            return Outcome("context_overflow", discreet(str(error)))
        if _consists_of(error, self.caller.parse_errors):
            return Outcome("parse_failed", describe(error))
        return Outcome("program_error", describe(error))

    def _scored(self, value: Any) -> Outcome:
        score = read_score(value)
        parts = canonical_json(score.parts) if score.parts else None
        return Outcome("ok", None, self.output, score.score, parts)


def _consists_of(error: BaseException, known: Sequence[BaseException]) -> bool:
    """Whether it is one of the known, or a group of nothing else (as `asyncio.TaskGroup` raises it)."""
    if isinstance(error, BaseExceptionGroup):
        return all(_consists_of(part, known) for part in error.exceptions)
    return any(error is one for one in known)


async def _awaited(value: Any, judge: JudgeCaller) -> Any:
    enter_task(judge.recorder.branch)
    return await value
