"""Whether another process works on a run now, and on what, without touching any of its locks."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.manifests import SCRATCH
from pipeline.reporting.text import plural
from pipeline.store import Store

LOCKS = Path("/proc/locks")
"""Where Linux tells who holds which lock; elsewhere nothing is known."""


def at_work(run_dir: Path) -> str | None:
    """The stage that another process makes for a run at this moment, and how far it is; None where none is known."""
    holders = _holders()
    holder = holders.get(_inode(run_dir / ".lock"))
    if holder is None or holder == os.getpid():
        return None
    for partial in Store(run_dir / "artifacts").unfinished():
        if holders.get(_inode(partial.with_suffix(".lock"))) == holder:
            return f"{partial.parent.name}, {plural(_shards(partial), 'file')} committed"
    return "between two stages"


def _shards(partial: Path) -> int:
    """Committed files; work in progress and timings are none."""
    found = (path.relative_to(partial).parts[0] for path in partial.rglob("*") if path.is_file())
    return sum(part not in (SCRATCH, "telemetry") for part in found)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _holders() -> dict[int | None, int]:
    """Process by inode of the file that it holds a lock of (flock)."""
    try:
        lines = LOCKS.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    fields = [line.split() for line in lines]
    return {int(part[5].rpartition(":")[2]): int(part[4]) for part in fields if len(part) > 5 and part[1] == "FLOCK"}
