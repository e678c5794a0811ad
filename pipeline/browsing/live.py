"""The run as it is now: read again whenever run.json was replaced, so that a running run can be watched."""

from __future__ import annotations

import threading
from pathlib import Path

from pipeline.browsing.tokens import Vocabulary
from pipeline.reporting.opened import OpenRun, open_run
from pipeline.runfile import NAME


class Live:
    """A run folder for several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._mark, self._run = self._state(), open_run(folder)
        self.vocabulary = Vocabulary(self._run.recipe.model.base)

    def run(self) -> OpenRun:
        """The run, opened.

        Raises:
            DataError: naming the file, when it is damaged.
        """
        with self._lock:
            if (mark := self._state()) != self._mark:
                self._run, self._mark = open_run(self.folder), mark
            return self._run

    def _state(self) -> tuple[int, int, int] | None:
        try:
            stat = (self.folder / NAME).stat()
        except OSError:
            return None  # open_run says what is wrong
        return stat.st_mtime_ns, stat.st_ino, stat.st_size
