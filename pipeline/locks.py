"""Locks: one process a run, one process an artifact. A lock dies with its holder (flock)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import LockedError


@contextmanager
def hold(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` for the length of the block.

    Raises:
        LockedError: at once, when another process holds it; `what` and the holder's process id are named.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise LockedError(
                f"{what} is in use by another process (pid {holder}). Wait for it to end, then run again."
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
