"""The runner: many program runs at once, their LM calls served in batches by one engine."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from stages.engines.batcher import Batcher
from stages.engines.signals import RunEnded
from stages.programs.load import Program
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
    loop: _LoopThread | None = None
    batcher: Batcher = field(init=False)

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
        ended = [self._leave(run, outcome) for run, outcome in messages if run in self.live]
        ended += [self._leave(run, run.timed_out()) for run in list(self.live) if run.expired]
        return [finished for finished in ended if finished is not None]

    def _leave(self, run: LiveRun, outcome: Outcome) -> Finished | None:
        self.live.discard(run)
        run.end()
        if run.caller.failure is not None:
            if run.attempt == 0:
                self.waiting.appendleft((run.job, 1))
                return None
            outcome = Outcome("engine_error", str(run.caller.failure))
        return Finished(run.job, outcome, run.recorder.rows())

    def run_in_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine in the event loop, which is started on first use."""
        if self.loop is None:
            self.loop = _LoopThread()
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop.loop)

    def disband(self) -> None:
        """Abandon whatever is still in flight."""
        for run in self.live:
            run.end()
        if self.loop is not None:
            self.loop.stop()


class _LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_quiet_about_ended_runs)
        self._stopping = False
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._stopping:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue  # a program's own exit ends that program, not the loop of all others
        if tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        self.loop.close()

    def stop(self) -> None:
        """Cancel what still runs in the loop and close it."""
        self._stopping = True
        self.loop.call_soon_threadsafe(self.loop.stop)


def _quiet_about_ended_runs(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), RunEnded):
        loop.default_exception_handler(context)
