"""The folder of a launch: its socket and its logs. It goes with the command, or with the next one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = "lock"
_LONGEST = 60
"""Of a path that sockets are made below: they take some hundred characters in all."""


@contextmanager
def own_folder() -> Iterator[tuple[Path, int]]:
    """A folder that nobody else has, and the descriptor of its lock, for the processes that work in it to inherit.

    A folder whose lock nobody holds was left by a killed command, and is taken away first.
    """
    below = Path(tempfile.gettempdir())
    if len(str(below)) > _LONGEST:
        below = Path("/tmp")  # noqa: S108 - a folder of our own in it
    name = f"mmgrpo-train-{os.getuid()}-"
    for left in below.glob(f"{name}*"):
        _take_away(left)
    made = Path(tempfile.mkdtemp(prefix=f"making-{name}", dir=below))
    lock = os.open(made / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = made.rename(made.with_name(made.name.removeprefix("making-")))  # nobody sees it without its lock held
        yield made, lock
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def _take_away(folder: Path) -> None:
    """Delete a folder, unless somebody works in it."""
    with suppress(OSError):  # held, gone already, or somebody else's
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(lock)
