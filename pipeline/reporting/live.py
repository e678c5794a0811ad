"""The report of a run at work: written anew as stages begin and get further, for about a hundredth of the run's time.

The run matters more than its report: one that cannot be built is told, and the run goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from pipeline.progress import Reporter
from pipeline.reporting.build import build_report

SHARE = 0.01
"""Of the time since the run began that building may take, the last time, which is always, left out."""
FIRST_S = 0.5
"""What building is taken to cost before it was done once."""


class LiveReport:
    """Builds the report of one run, as often as it may. A context: its page claims nothing to run once it is left."""

    def __init__(self, folder: Path, reporter: Reporter, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._reporter, self._clock = folder, reporter, clock
        self._began, self._spent, self._cost = clock(), 0.0, FIRST_S
        self._building = threading.Lock()
        self._told: set[str] = set()
        self._claims = False

    def __enter__(self) -> LiveReport:
        self._reporter.listen(self.heard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reporter.listen(None)
        if self._claims:
            self._build(None)

    def heard(self, label: str, done: int, total: int, unit: str) -> None:
        """A stage began, or got further."""
        if self._spent + self._cost > SHARE * (self._clock() - self._began):
            return
        far = f", {done:,} of {total:,} {unit}" if total else ""
        self._build(f"{label}{far}")

    def finish(self) -> Path | None:
        """The report as it stays; None where it could not be built."""
        return self._build(None)

    def _build(self, running: str | None) -> Path | None:
        if not self._building.acquire(blocking=running is None):
            return None  # another thread of the stage is at it
        began = self._clock()
        try:
            page = build_report(self._folder, running)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is worth more than its report
            self._tell(error)
            return None
        else:
            self._claims = running is not None
            return page
        finally:
            self._cost = self._clock() - began
            self._spent += self._cost
            self._building.release()

    def _tell(self, error: Exception) -> None:
        """Each problem once: a table that cannot be read stays so."""
        text = f"The report could not be built, which does not harm the run: {type(error).__name__}: {error}"
        if text not in self._told:
            self._told.add(text)
            self._reporter.note(text)
