"""A thread that does one thing after another: what it writes is written while the engine computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any


class Clerk:
    """Does what it is given, in order, in a thread of its own. Leaving it waits until all is done."""

    def __init__(self, ahead: int) -> None:
        """At most `ahead` things wait to be done; `do` waits for the oldest beyond that."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="clerk")
        self._ahead = ahead
        self._given: deque[Future[Any]] = deque()

    def __enter__(self) -> Clerk:
        return self

    def do(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Have something done.

        Raises:
            BaseException: what something given before has failed with.
        """
        while self._given and (self._given[0].done() or len(self._given) >= self._ahead):
            self._given.popleft().result()
        self._given.append(self._thread.submit(work, *arguments))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Wait for everything, also where an error is on its way: what was given is worth keeping.

        Raises:
            BaseException: what the first of it failed with, unless another error is on its way.
        """
        self._thread.shutdown()
        if error is None:
            for done in self._given:
                done.result()
