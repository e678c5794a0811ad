"""What process 0 prints is told by the command that started it, as if the stage ran there: warnings, addresses."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.terminal import say

RAISED = "Traceback (most recent call last)"
STREAMS = ("stdout", "stderr")


class Said:
    """The lines of process 0, in the files that torchrun puts them into."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._told = dict.fromkeys(STREAMS, 0)
        """Bytes of each stream."""

    def tell(self, *, last: bool = False) -> None:
        """Print the lines that are new.

        Args:
            last: no more will come, and all is well. Before that a traceback is kept back, with all that follows: it
                is part of the error that the command raises.
        """
        for stream in STREAMS:
            for path in self._logs.glob(f"*/attempt_*/0/{stream}.log"):
                with path.open("rb") as file:
                    file.seek(self._told[stream])
                    new = file.read()
                if not last:
                    new = new[: new.rfind(b"\n") + 1].partition(RAISED.encode())[0]
                self._told[stream] += len(new)
                for line in new.decode(errors="replace").splitlines():
                    say(line, file=getattr(sys, stream))
