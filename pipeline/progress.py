"""Progress: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pipeline.terminal import say
from schemas.visible import plain

Listener = Callable[[str, int, int, str], None]
"""Is told what a stage is called, and how many of how many things of a kind are done; 0 of 0 when it begins."""

EVERY_S = 10.0
"""Shortest time between two plain lines of one stage."""
FORECAST_FROM = 0.05
"""Share of a stage that must be done before a time left is worth showing."""


@dataclass
class Pace:
    """How fast one kind of thing gets done: a stage may do several, such as the steps of one adapter after another."""

    unit: str
    since: float
    """When the kind before it was last heard of, or the stage began."""
    before: int = 0
    """What was done already: a stage that was killed goes on where it was."""
    seen: float = field(init=False)
    """When it was last heard of."""

    def __post_init__(self) -> None:
        self.seen = self.since

    def left(self, done: int, total: int) -> float | None:
        """Seconds until all is done, or None where it is too early to say."""
        if done <= FORECAST_FROM * total or done <= self.before:
            return None
        return (self.seen - self.since) / (done - self.before) * (total - done)


class Reporter:
    """Shows what runs. One stage at a time: `start`, any number of `update`, `finish`."""

    def __init__(self, mode: str = "auto", stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._mode = ("bar" if self._stream.isatty() else "plain") if mode == "auto" else mode
        self._label, self._began, self._last = "", 0.0, 0.0
        self._pace = Pace("", 0.0)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._listener: Listener | None = None

    def listen(self, listener: Listener | None) -> None:
        """Tell somebody else too, from now on; None ends it."""
        self._listener = listener

    def note(self, text: str) -> None:
        """One line of text."""
        if self._mode != "off":
            say(text.replace("\n", "\u240a"), file=self._stream, flush=True)

    def start(self, label: str) -> None:
        """A stage begins."""
        if self._listener is not None:
            self._listener(label, 0, 0, "")
        self._label, self._began = label, time.monotonic()
        self._last = self._began
        self._pace = Pace("", self._began)
        if self._mode == "bar":
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=12),
                MofNCompleteColumn(),
                TextColumn("{task.fields[unit]} {task.fields[figures]}", markup=False),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(file=self._stream), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(plain(label), total=None, unit="", figures="")

    def update(self, done: int, total: int, unit: str, figures: dict[str, float | str]) -> None:
        """A stage got further."""
        if self._listener is not None:
            self._listener(self._label, done, total, unit)
        text = " · ".join(f"{name.replace('_', ' ')} {_figure(value)}" for name, value in figures.items())
        now = time.monotonic()
        if unit != self._pace.unit:
            self._pace = Pace(unit, self._pace.seen, max(0, done - 1))
            if self._bar is not None and self._task is not None:
                self._bar.reset(self._task)
        self._pace.seen = now
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total, unit=unit, figures=plain(text))
            return
        if now - self._last >= EVERY_S:
            self._last = now
            left = self._pace.left(done, total)
            parts = [f"{done}/{total} {unit}", *([text] if text else []), *([f"{left:.0f} s left"] if left else [])]
            self.note(f"  {self._label}: {' · '.join(parts)}")

    def finish(self, text: str) -> None:
        """A stage ended; `text` says how."""
        self.stop()
        self.note(f"{self._label}: {text} ({time.monotonic() - self._began:.1f} s)")

    def stop(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _figure(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
