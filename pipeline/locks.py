"""Locks: one process a run, one process an artifact. A lock dies with its holder (flock).

Where the folder is the mirror of an address, a lease there comes on top: other machines see no flock of this one.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from pipeline.remote.attached import mirror_of
from schemas.errors import LockedError


@contextmanager
def hold(path: Path, what: str, *, here: bool = False, shared: bool = False) -> Iterator[None]:
    """Hold the lock file `path` for the length of the block.

    Args:
        path: the lock file.
        what: what it locks, for the message.
        here: it locks something of this machine only, whatever folder it lies in.
        shared: others may hold it too who share it; who wants it alone is kept out. Only `here`: leases are not shared.

    Raises:
        LockedError: at once, when another process holds it; `what` and the holder's process id are named.
    """
    assert here or not shared
    mirror = None if here else mirror_of(path)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # Who reads a mirror tries its lock for an instant, to see whether somebody writes there.
        if not any(_taken(descriptor, kind, pause) for pause in ((0.0,) if mirror is None else (0.0, 0.05, 0.2))):
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise LockedError(
                f"{what} is in use by another process (pid {holder}). Wait for it to end, then run again."
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        with nullcontext() if mirror is None else mirror.leased(path, what):
            yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int, kind: int, pause: float) -> bool:
    time.sleep(pause)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
