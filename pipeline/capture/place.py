"""Where a program is: which run, and which of its modules, in this thread or task."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.capture.runs import Run

_ZERO = time.time_ns() - time.perf_counter_ns()


def now() -> int:
    """Nanoseconds since 1970 that never run backwards within a process."""
    return _ZERO + time.perf_counter_ns()


def strand() -> tuple[int, int]:
    """The thread and the asyncio task of the caller."""
    asyncio = sys.modules.get("asyncio")
    task = None
    if asyncio is not None:
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop runs in this thread
            task = None
    return threading.get_ident(), id(task)


@dataclass(frozen=True, slots=True)
class Place:
    """Where LM calls are made from."""

    run: Run
    module: str | None = None
    invocation_index: int | None = None
    attempt: int | None = None
    parent: str | None = None
    """The span that steps hang from; None: the root."""
    since: int = 0
    """When the module was entered; 0 outside of modules."""


HERE: ContextVar[Place | None] = ContextVar("mmgrpo_capture_place", default=None)


class Within:
    """Being at a place, as a context manager. Where it ends in another context than it began in, nothing changes."""

    def __init__(self, place: Place | None) -> None:
        self._place = place
        self._token: Token[Place | None] | None = None

    def __enter__(self) -> None:
        if self._place is not None:
            self._token = HERE.set(self._place)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            with suppress(ValueError):  # a generator that was ended elsewhere
                HERE.reset(self._token)
            self._token = None
