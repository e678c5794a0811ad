"""A started process ends when the one that started it is gone, however that ended."""

from __future__ import annotations

import os
import signal
import threading
import time

EVERY_S = 0.5


def end_with(parent: int) -> None:
    """From now on, end this process by SIGTERM as soon as its parent is another than `parent`."""
    threading.Thread(target=_watch, args=(parent,), name="watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)
