"""The runner: many program runs at once, their LM calls served in batches by one engine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from schemas.canonical import storable
from stages.engines.batcher import Batcher
from stages.programs.load import Program
from stages.programs.loop import LoopThread
from stages.programs.rows import invocation_rows, judge_rows
from stages.programs.run import Finished, Job, LiveRun, Outcome
from stages.programs.session import Session

TICK_S = 0.05
"""How often timeouts are looked for while nothing happens."""


def run_programs(program: Program, jobs: Sequence[Job], session: Session, concurrency: int) -> Iterator[Finished]:
    """Run the program once per job; yields runs as they finish, in no fixed order.

    At most `concurrency` runs are in flight. Sync programs have a thread each, async ones share an event loop; the
    engine works in the thread that consumes this iterator. A run whose engine call failed is made once more from
    scratch, then ends as `engine_error`. Closing the iterator (or Ctrl-C) abandons what is in flight.
    """
    crew = _Crew(program, session, deque((job, 0) for job in jobs), concurrency)
    try:
        while crew.start():
            yield from crew.step()
    finally:
        crew.disband()


@dataclass
class _Crew:
    program: Program
    session: Session
    waiting: deque[tuple[Job, int]]
    concurrency: int
    live: set[LiveRun] = field(default_factory=set)
    loop: LoopThread | None = None
    batcher: Batcher = field(init=False)
    starting: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.batcher = Batcher(self.session.engine)

    def start(self) -> bool:
        """Start runs up to the limit; says whether any is in flight."""
        while self.waiting and len(self.live) < self.concurrency:
            job, attempt = self.waiting.popleft()
            run = LiveRun(job, self.program, self.session, self.batcher, attempt)
            self.live.add(run)
            run.start(self.run_in_loop)
        return bool(self.live)

    def step(self) -> list[Finished]:
        """Serve calls, and collect the runs that ended or expired."""
        messages = self.batcher.step(lambda: all(run.clock.waiting for run in self.live), TICK_S)
        ended = [(run, outcome) for run, tries, outcome in messages if run in self.live and tries == run.tries]
        ended += [(run, run.timed_out()) for run in self._expired()]
        finished = [self._leave(run, outcome) for run, outcome in ended if run in self.live]
        return [run for run in finished if run is not None]

    def _expired(self) -> list[LiveRun]:
        """The runs to end as timed out. A run that only waits for a stuck event loop is made anew instead."""
        expired = [run for run in self.live if run.expired]
        if self.loop is None or not any(run in self.loop.owners for run in expired):
            return expired
        turns, blocker = self.loop.turns(), self.loop.blocker()
        if turns:
            return expired
        outside = [run for run in expired if run not in self.loop.owners]
        if turns is None or (isinstance(blocker, LiveRun) and blocker in self.live and not blocker.expired):
            return outside
        guilty = [run for run in expired if run in self.loop.owners and blocker in (None, run)]
        self._give_up(self.loop, guilty)
        return outside + guilty

    def _give_up(self, loop: LoopThread, guilty: list[LiveRun]) -> None:
        with self.starting:
            self.loop = None
        loop.stop()
        for run in [run for run in self.live if run in loop.owners and run not in guilty]:
            self.live.discard(run)
            run.end()
            self.waiting.appendleft((run.job, run.attempt))

    def _leave(self, run: LiveRun, outcome: Outcome) -> Finished | None:
        """What came of a run; None where it is tried again, whole or its metric alone."""
        if outcome.status == "metric_error" and run.caller.failure is None and run.score_again(self.run_in_loop):
            return None
        self.live.discard(run)
        run.end()
        if self.loop is not None:
            self.loop.owners.discard(run)
        if run.caller.failure is not None:
            if run.attempt == 0:
                self.waiting.appendleft((run.job, 1))
                return None
            outcome = Outcome("engine_error", storable(str(run.caller.failure)))
        judged = [] if run.judge is None else judge_rows(run.judge.recorder)
        return Finished(run.job, outcome, invocation_rows(run.recorder), judged, run.tries, run.seconds)

    def run_in_loop(self, coroutine: Coroutine[Any, Any, Any], run: LiveRun) -> Future[Any]:
        """Run a run's coroutine in the event loop, which is started on first use."""
        with self.starting:
            if self.loop is None:
                self.loop = LoopThread()
            return self.loop.run(coroutine, run)

    def disband(self) -> None:
        """Abandon whatever is still in flight."""
        for run in self.live:
            run.end()
        if self.loop is not None:
            self.loop.stop()
