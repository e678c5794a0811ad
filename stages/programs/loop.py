"""The event loop that async programs and metrics share, in a thread of its own, and whether it still turns.

A run that blocks the loop (a `time.sleep`, an endless computation) stops all others in it. The stage then leaves that
loop to it, and makes the other runs again in a new one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from typing import Any
from weakref import WeakKeyDictionary

from stages.engines.signals import RunEnded
from stages.programs.branches import current, enter_task

STUCK_S = 1.0
"""A loop that does nothing for so long, while a run in it is over its time, is given up."""
_OWNER: ContextVar[object] = ContextVar("owner")
"""The run that a task works for: tasks inherit it from the one that made them."""


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.owners: set[object] = set()
        """The runs that have used it."""
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_quiet_about_ended_runs)
        self._loop.set_task_factory(self._task)
        self._tasks: WeakKeyDictionary[asyncio.Task[Any], object] = WeakKeyDictionary()
        self._stopping = False
        self._asked: float | None = None
        self._answered = threading.Event()
        threading.Thread(target=self._work, daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, Any], owner: object) -> Future[Any]:
        """Run a coroutine of `owner`, from any thread."""
        self.owners.add(owner)
        context = copy_context()
        context.run(_OWNER.set, owner)
        future: Future[Any] = context.run(asyncio.run_coroutine_threadsafe, coroutine, self._loop)
        return future

    def turns(self) -> bool | None:
        """Whether the loop turns. None: not known yet, ask again."""
        if self._asked is None:
            self._asked = time.monotonic()
            self._answered.clear()
            self._loop.call_soon_threadsafe(self._answered.set)
        if self._answered.is_set():
            self._asked = None
            return True
        return False if time.monotonic() - self._asked > STUCK_S else None

    def blocker(self) -> object | None:
        """The run whose task has the loop at the moment."""
        task = asyncio.current_task(self._loop)
        return None if task is None else self._tasks.get(task)

    def stop(self) -> None:
        """Cancel what still runs in the loop and close it. A stuck one ends when what blocks it does, if ever."""
        self._stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """A task is a branch of its own, in the order in which its parent made it."""
        branch = current()
        if branch is not None and options.get("context") is None:
            options["context"] = copy_context()
            options["context"].run(enter_task, branch.fork())
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        if owner := _OWNER.get(None):
            self._tasks[task] = owner
        return task

    def _work(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._stopping:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue  # a program's own exit ends that program, not the loop of all others
        if tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        self._loop.close()


def _quiet_about_ended_runs(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), RunEnded):
        loop.default_exception_handler(context)
