"""Folders for spools, which may be as large as what was read, and are gone afterwards.

What an ingest had read when it was killed or stopped is taken up by the next one that reads in the same way; any other
clears it away.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import stages.ingest
from pipeline.locks import hold
from schemas.canonical import digest, digest_file
from schemas.errors import LockedError, StageError
from stages.ingest.formats import GROUP

_LOCK = "lock"
_MAKING = ".making-spool-"
_STOPPED = (KeyboardInterrupt, SystemExit, StageError)
"""What says nothing against what was read: a signal, or another process that was killed."""


@cache
def code_digest() -> str:
    """Digest of all code that reads traces and makes records of them, formats of other packages by their releases."""
    folder = Path(stages.ingest.__file__).parent
    formats = metadata.entry_points(group=GROUP)
    others = [[entry.name, entry.value, entry.dist.version if entry.dist else ""] for entry in formats]
    return digest([[[path.name, digest_file(path)] for path in sorted(folder.glob("*.py"))], sorted(others)])


@contextmanager
def spooled_in(folder: Path, way: Any = None) -> Iterator[Path]:
    """A folder for spools beside snapshots, where there is room for them.

    Args:
        folder: of snapshots.
        way: how files are read, as a JSON value: what was left of reading in this way is taken up, if no other process
            works on it. None: begin anew, and leave nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = None if way is None else folder / f".spool-{digest([way, code_digest()])[:16]}"
    for left in (*folder.glob(".spool-*"), *folder.glob(f"{_MAKING}*/{_LOCK}")):
        if left != wanted:
            _clear(left if left.name != _LOCK else left.parent)
    with ExitStack() as held:
        own = _taken(wanted, held) or _made(folder, wanted, held)
        stays = False
        try:
            yield own
        except _STOPPED:
            stays = own == wanted
            raise
        finally:
            if not stays:
                shutil.rmtree(own)


def _taken(wanted: Path | None, held: ExitStack) -> Path | None:
    """The folder that was left, its lock held; None where there is none, or another process works there."""
    if wanted is None or not wanted.exists():
        return None
    try:
        held.enter_context(hold(wanted / _LOCK, "the spool", here=True))
        ours = (wanted / _LOCK).read_text() == str(os.getpid())  # not so when it was cleared away in between
    except (LockedError, OSError):
        return None
    return wanted if ours else None


def _made(folder: Path, wanted: Path | None, held: ExitStack) -> Path:
    """A new folder, which nobody sees without its lock held."""
    made = Path(mkdtemp(prefix=_MAKING, dir=folder))
    held.enter_context(hold(made / _LOCK, "the spool", here=True))
    own = folder / f".spool-{made.name.removeprefix(_MAKING)}"
    if wanted is not None and not wanted.exists():
        own = wanted
    return made.rename(own)


def _clear(left: Path) -> None:
    try:
        with hold(left / _LOCK, "the spool", here=True):
            shutil.rmtree(left)
    except (LockedError, OSError):
        return  # another process works there, or has just taken it away
