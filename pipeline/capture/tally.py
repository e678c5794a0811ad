"""What capturing counts, and how it says that something went wrong: never by an exception."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from pathlib import Path

log = logging.getLogger("mmgrpo.capture")


class Tally:
    """Counts by name, from any thread."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin at zero with a lock of its own, as in a process that was just forked."""
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> int:
        """Count, and return what has been counted under this name."""
        with self._lock:
            self._counts[name] += count
            return self._counts[name]

    def counts(self) -> dict[str, int]:
        """All counts so far."""
        with self._lock:
            return dict(sorted(self._counts.items()))

    def trouble(self, name: str, said: str, count: int = 1) -> None:
        """Count something that went wrong; it is logged when a name's count begins, and when it has one more digit."""
        total = self.add(name, count)
        before = total - count
        if not before or len(str(total)) > len(str(before)):
            log.warning("capture: %s (%s, %d so far); the program goes on", said, name, total)

    def failed(self, doing: str, error: BaseException) -> None:
        """Count an error of capturing itself. Its text may hold what was captured: only its kind and place are told."""
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f"{Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno}" if place else "?"
        self.trouble("errors", f"{doing}: {type(error).__name__} at {where}")
