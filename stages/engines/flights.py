"""Requests under way in an event loop, for a caller in another thread: tickets in, outcomes out."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from stages.engines.interface import Result

Outcome = Result | Exception


class Flights:
    """See `interface.ContinuousEngine`: what `add`, `poll` and `cancel` have in common for any service.

    Args:
        loop: the event loop that serves requests, running in another thread.
        unserved: what a request fails with on its own; any other exception ends the stage.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, unserved: type[Exception]) -> None:
        self._loop, self._unserved = loop, unserved
        self._flying: dict[int, tuple[int, Future[Result]]] = {}
        """By number: the ticket, and its result. A ticket may come again; a number never does."""
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._started, self._since = 0, 0.0
        self.seconds = 0.0
        """How long anything was under way."""

    def start(self, ticket: int, work: Coroutine[Any, Any, Result]) -> None:
        """Begin a request."""
        if not self._flying:
            self._since = time.monotonic()
        self._started += 1
        number = self._started
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._flying[number] = ticket, future
        future.add_done_callback(lambda _: self._done.put(number))

    def poll(self, wait_s: float) -> list[tuple[int, Outcome]]:
        """Wait for outcomes, and hand out all that are there.

        Raises:
            Exception: what ends the stage; nothing is under way any more then.
        """
        outcomes: list[tuple[int, Outcome]] = []
        try:
            number = self._done.get(timeout=wait_s)
            while True:
                if number in self._flying:
                    outcomes.append(self._outcome(number))
                number = self._done.get_nowait()
        except queue.Empty:
            return outcomes

    def cancel(self, ticket: int) -> None:
        """Let a request go, whose outcome nobody waits for."""
        for number in [number for number, (own, _) in self._flying.items() if own == ticket]:
            self._leave(number).cancel()

    def drop_all(self) -> None:
        """Let all requests go."""
        for number in list(self._flying):
            self._leave(number).cancel()

    def _outcome(self, number: int) -> tuple[int, Outcome]:
        ticket = self._flying[number][0]
        future = self._leave(number)
        error = future.exception()
        if error is None:
            return ticket, future.result()
        if isinstance(error, self._unserved):
            return ticket, error
        self.drop_all()
        raise error

    def _leave(self, number: int) -> Future[Result]:
        future = self._flying.pop(number)[1]
        if not self._flying:
            self.seconds += time.monotonic() - self._since
        return future
