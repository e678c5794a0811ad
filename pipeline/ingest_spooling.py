"""Folders for spools, which may be as large as what was read, and are gone afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from pipeline.locks import hold
from schemas.errors import LockedError

_LOCK = "lock"


@contextmanager
def spooled_in(folder: Path) -> Iterator[Path]:
    """A folder for spools beside snapshots, where there is room for them. What killed processes left there goes."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".spool-*"):
        _clear(left)
    made = Path(mkdtemp(prefix=".making-spool-", dir=folder))
    with hold(made / _LOCK, "the spool", here=True):
        own = made.rename(folder / made.name.replace("making-", "", 1))  # nobody sees it without its lock held
        try:
            yield own
        finally:
            shutil.rmtree(own)


def _clear(left: Path) -> None:
    try:
        with hold(left / _LOCK, "the spool", here=True):
            shutil.rmtree(left)
    except (LockedError, OSError):
        return  # another process works there, or has just taken it away
