"""What a pending LM call may end with other than an answer.

What ends a run from outside is no `Exception`: a program's own `except` must not swallow it.
"""

from __future__ import annotations


class RunEnded(BaseException):
    """The run is over (timed out, finished, or restarted); whatever still runs of it gets this at its next LM call."""


class LMFailure(BaseException):
    """An LM could not be asked: the engine or an endpoint failed. The run is tried once more from scratch."""


class ContextOverflowError(Exception):
    """A prompt leaves no room for a completion within the context limit. A program may catch it and shorten."""
