"""A call that waits for the engine, what answers it, and the clock of the run that waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from stages.engines.interface import Adapter, Request, Result, Sampling


class Clock:
    """Time that a program run spends on its own, with no LM call of it pending."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending = 0
        self._spent = 0.0
        self._since = time.monotonic()

    def pause(self) -> None:
        """A call is pending."""
        with self._lock:
            if self._pending == 0:
                self._spent += time.monotonic() - self._since
            self._pending += 1

    def resume(self) -> None:
        """A pending call was answered."""
        with self._lock:
            self._pending -= 1
            if self._pending == 0:
                self._since = time.monotonic()

    def restart(self) -> None:
        """Count from zero again."""
        with self._lock:
            self._spent, self._since = 0.0, time.monotonic()

    @property
    def waiting(self) -> bool:
        """Whether a call is pending."""
        return self._pending > 0

    @property
    def spent(self) -> float:
        """Seconds spent so far."""
        with self._lock:
            return self._spent + (0.0 if self._pending else time.monotonic() - self._since)


@dataclass
class Served:
    """An answered call."""

    prompt_ids: tuple[int, ...]
    result: Result


@dataclass
class Pending:
    """A call that waits for the engine."""

    messages: list[dict[str, str]]
    sampling: Sampling
    seed: int
    adapter: Adapter | None
    clock: Clock
    over: Callable[[], bool]
    """Whether the run that made the call is over, so that nobody waits for the answer."""
    answered: Callable[[Served], None]
    """Called in the engine's thread before the future is set."""
    future: Future[Served] = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.future.set_running_or_notify_cancel()  # an abandoned awaiter must not cancel what the engine will set

    def settle(self, outcome: Served | BaseException) -> None:
        """Give the caller its answer."""
        self.clock.resume()
        if isinstance(outcome, BaseException):
            self.future.set_exception(outcome)
        else:
            self.answered(outcome)
            self.future.set_result(outcome)


def request_of(call: Pending, prompt_ids: tuple[int, ...]) -> Request:
    """A call as the engine takes it."""
    return Request(prompt_ids, call.sampling, call.seed, call.adapter, call.messages)
