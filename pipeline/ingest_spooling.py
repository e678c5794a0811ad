"""Folders for spools, which may be as large as what was read, and are gone afterwards.

What an ingest had read when it was killed or stopped is taken up by the next one that reads in the same way; any other
clears it away. Each attempt has a folder name of its own: what outlives an attempt writes into no later one.
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
from uuid import uuid4

import stages.ingest
from pipeline.locks import hold
from schemas.canonical import digest, digest_file
from schemas.errors import LockedError, StageError
from stages.ingest.formats import GROUP

FORGETTING = ".forget.lock"
"""In a folder of snapshots: whoever brings traces into it shares this lock, and who takes traces out holds it alone.

What was to be forgotten is read behind it, so that nothing comes back with an ingest that had begun before.
"""
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

    Raises:
        LockedError: while traces are being forgotten there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = None if way is None else f".spool-{digest([way, code_digest()])[:16]}-"
    with ExitStack() as held:
        held.enter_context(hold(folder / FORGETTING, f"folder of snapshots {folder}", here=True, shared=True))
        own: Path | None = None
        for left in (*sorted(folder.glob(".spool-*")), *folder.glob(f"{_MAKING}*/{_LOCK}")):
            if own is None and wanted is not None and left.name.startswith(wanted) and (left / _LOCK).exists():
                own = _taken(left, wanted, held)
            else:
                _clear(left if left.name != _LOCK else left.parent)
        own = own or _made(folder, wanted, held)
        stays = False
        try:
            yield own
        except _STOPPED:
            stays = wanted is not None and own.name.startswith(wanted)
            raise
        finally:
            if not stays:
                shutil.rmtree(own)


def _taken(left: Path, wanted: str, held: ExitStack) -> Path | None:
    """What was left, its lock held, under a name that it never had; None where another process works there.

    Whoever wrote into it for an earlier attempt and outlived that, such as an actor on another machine, no longer finds
    it.
    """
    try:
        held.enter_context(hold(left / _LOCK, "the spool", here=True))
        ours = (left / _LOCK).read_text() == str(os.getpid())  # not so when it was cleared away in between
        return left.rename(left.with_name(f"{wanted}{uuid4().hex[:8]}")) if ours else None
    except (LockedError, OSError):
        return None


def _made(folder: Path, wanted: str | None, held: ExitStack) -> Path:
    """A new folder, which nobody sees without its lock held."""
    made = Path(mkdtemp(prefix=_MAKING, dir=folder))
    held.enter_context(hold(made / _LOCK, "the spool", here=True))
    first = wanted if wanted is not None and not list(folder.glob(f"{wanted}*")) else ".spool-"
    return made.rename(folder / f"{first}{made.name.removeprefix(_MAKING)}")


def taken_over(folder: Path, name: str) -> Path:
    """A folder of this attempt alone, below another, with what earlier attempts left in theirs of the same name.

    As with spools, whoever still writes for one of them no longer finds its folder.
    """
    own = folder / f"{name}-{uuid4().hex[:8]}"
    own.mkdir(parents=True)
    for left in folder.glob(f"{name}-*"):
        if left != own:
            for held in left.iterdir():
                held.rename(own / held.name)
            shutil.rmtree(left)
    return own


def clear_spools(folder: Path) -> None:
    """Delete all spools beside snapshots that no process works on."""
    for left in (*folder.glob(".spool-*"), *(path.parent for path in folder.glob(f"{_MAKING}*/{_LOCK}"))):
        _clear(left)


def _clear(left: Path) -> None:
    try:
        with hold(left / _LOCK, "the spool", here=True):
            shutil.rmtree(left)
    except (LockedError, OSError):
        return  # another process works there, or has just taken it away
