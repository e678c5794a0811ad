"""Ends processes that would outlive this one when it is killed, with the memory that they hold."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

_WATCH = """
import os, signal, sys, time
if not sys.stdin.buffer.read():
    for signal_, pause in ((signal.SIGTERM, 10), (signal.SIGKILL, 0)):
        for process in sys.argv[1:]:
            try:
                os.kill(int(process), signal_)
            except ProcessLookupError:
                pass
        time.sleep(pause)
"""


class Guard:
    """A small process that waits for this one to end. Without a word of dismissal it ends `processes`."""

    def __init__(self, processes: Sequence[int]) -> None:
        self._watch = subprocess.Popen(  # noqa: S603 - our own words and numbers
            [sys.executable, "-I", "-S", "-c", _WATCH, *map(str, processes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is for this process, which then ends in order
        )

    def dismiss(self) -> None:
        """The processes have ended, or are none's concern any more."""
        self._watch.communicate(b"done")
