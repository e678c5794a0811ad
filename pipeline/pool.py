"""Processes that share the steps of a job. What they make does not depend on how many they are."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from schemas.errors import StageError

Task = TypeVar("Task")
Result = TypeVar("Result")
_state: Any = None
"""Of this process, where it is one of a pool."""


class Pool:
    """Does steps in this process, or in several others. Each of them has a state of its own, made at its start."""

    def __init__(self, state: Any, executor: ProcessPoolExecutor | None, ahead: int) -> None:
        self._own, self._executor, self._ahead = state, executor, ahead

    def each(self, step: Callable[[Any, Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """What a step makes of each task, in their order. Of the tasks, no more are held at once than are being done.

        Raises:
            StageError: when a process was killed.
        """
        if self._executor is None:
            yield from (step(self._own, task) for task in tasks)
            return
        waiting: deque[Future[Result]] = deque()
        try:
            for task in tasks:
                waiting.append(self._executor.submit(_do, step, task))
                if len(waiting) >= self._ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise StageError(
                f"one of {self._ahead - 1} processes was killed, probably because the machine's memory did not do for "
                "all of them: run again with `--exec ingest_workers=1`"
            ) from None
        finally:
            for future in waiting:
                future.cancel()


class Pools(Protocol):
    """What has processes elsewhere."""

    def pool(self, make: Callable[[], Any]) -> AbstractContextManager[Pool]:
        """A pool of them, as `pool_of` gives one."""


@contextmanager
def pool_of(workers: int | Pools, make: Callable[[], Any]) -> Iterator[Pool]:
    """A pool of so many processes; of one, this process does it all.

    Args:
        workers: processes of this machine, or who has others.
        make: makes the state of a process. It is sent to each of them.
    """
    if not isinstance(workers, int):
        with workers.pool(make) as pool:
            yield pool
        return
    if workers == 1:
        state = make()
        with _settled():
            yield Pool(state, None, 1)
        return
    context = multiprocessing.get_context("spawn")  # the threads of Polars and of tokenizers do not live through a fork
    with ProcessPoolExecutor(workers, context, _start, (make,)) as executor:
        try:
            yield Pool(None, executor, workers + 1)
        finally:
            executor.shutdown(cancel_futures=True)


@contextmanager
def _settled() -> Iterator[None]:
    """What was imported so far is not looked through for cycles meanwhile: that takes 8 % of the time of an ingest."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(make: Callable[[], Any]) -> None:
    global _state  # noqa: PLW0603 - what an initializer is for
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of them; the one that they work for ends them
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_follow, daemon=True).start()
    _state = make()
    gc.freeze()


def _follow() -> None:
    """End with the process that this one works for, also where that was killed and could say nothing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(step: Callable[[Any, Task], Result], task: Task) -> Result:
    return step(_state, task)
