"""Branches of a program run: where a call stands in the order that the program's code gives, whatever the clock says.

Calls of one branch follow one another. Work that the program starts beside itself (an asyncio task, an item of
`dspy.Parallel`) is a branch of its own, which takes the place in its parent at which it was started. Sorted by place,
the calls of a run stand as they would if every branch had run to its end before the next began: the order of
submission, the same in every run. Calls from threads of the program's own have no such place.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Place = tuple[int, ...]
"""Ranks of steps from the run's own branch inwards. Places compare as tuples do."""


class Branch:
    """A strand of a run. Its steps (calls, and branches that start there) are numbered as they are taken."""

    def __init__(self, run: object, path: Place = ()) -> None:
        self.run, self.path = run, path
        self.thread: threading.Thread | None = None
        """The thread that it is; None for a task, which may await work in any thread."""
        self._lock = threading.Lock()
        self._steps = 0

    def step(self) -> Place:
        """Take the next place."""
        with self._lock:
            self._steps += 1
            return (*self.path, self._steps)

    def fork(self) -> Branch:
        """A branch that starts here."""
        return Branch(self.run, self.step())


_CURRENT: ContextVar[Branch | None] = ContextVar("branch", default=None)


def current() -> Branch | None:
    """The branch of the thread or task at hand. None: one that the program started by means not known to us."""
    branch = _CURRENT.get()
    if branch is None or branch.thread not in (None, threading.current_thread()):
        return None
    return branch


def enter_task(branch: Branch) -> None:
    """Make it the branch of the asyncio task at hand."""
    _CURRENT.set(branch)


@contextmanager
def in_thread_of(branch: Branch | None) -> Iterator[None]:
    """Make it the branch of the thread at hand, and of no other that is given this one's context."""
    if branch is not None:
        branch.thread = threading.current_thread()
    token = _CURRENT.set(branch)
    try:
        yield
    finally:
        _CURRENT.reset(token)
