"""A circuit: after failures in a row a replica is left alone for a while, then one request tries it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

FAILURES = 5
"""Failures in a row that open a circuit."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0


@dataclass
class Circuit:
    """What is known of the health of one replica.

    A rate limit is no failure: the replica rests as long as it says, and is then asked as before.
    """

    clock: Callable[[], float] = time.monotonic
    said: str = ""
    """What the last failure was."""
    failures: int = 0
    """In a row."""
    opened: int = 0
    """How often in a row it was opened; 0: closed."""
    until: float = 0.0
    """No request goes out before this time."""
    _since: float | None = None
    _trying: bool = False
    _random: random.Random = field(default_factory=random.Random, repr=False)

    @property
    def ready(self) -> bool:
        """Whether a request may go out now: of an open circuit only one that tries it."""
        return self.clock() >= self.until and not self._trying

    def begin(self) -> bool:
        """A request goes out; says whether it is one that tries an open circuit."""
        self._trying = self.opened > 0
        return self._trying

    def succeeded(self) -> None:
        """A request was answered."""
        self.failures = self.opened = 0
        self.until, self._since, self._trying = 0.0, None, False

    def failed(self, why: str, *, trial: bool) -> None:
        """A request failed. Those that were under way when the circuit opened change nothing any more."""
        self._note(why)
        self.failures += 1
        if trial or (self.opened == 0 and self.failures >= FAILURES):
            self.opened += 1
            self._trying = False
            pause = min(FIRST_PAUSE_S * 2 ** (self.opened - 1), LONGEST_PAUSE_S)
            self.until = self.clock() + pause * self._random.uniform(0.5, 1.0)

    def limited(self, why: str, wait_s: float, *, trial: bool) -> None:
        """The replica asks for a pause."""
        self._note(why)
        self._trying = self._trying and not trial
        self.until = max(self.until, self.clock() + wait_s)

    def dropped(self, *, trial: bool) -> None:
        """Nobody waits for the request any more."""
        self._trying = self._trying and not trial

    def _note(self, why: str) -> None:
        self.said = why
        if self._since is None:
            self._since = self.clock()

    @property
    def out_s(self) -> float:
        """How long the replica will have given no answer by the time that it is asked again; 0 while it is in use."""
        now = self.clock()
        out = self._since is not None and (self.opened > 0 or self.until > now)
        return max(now, self.until) - self._since if out and self._since is not None else 0.0
