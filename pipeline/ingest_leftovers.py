"""What ingests left unfinished that were stopped or killed, beside the snapshots.

One of the same command as this, but of files that have changed since, will not be finished: what it has made is taken
over, and it is cleared away. Any other goes on when its own files are ingested again, so that it is named and left. Of
what another process works on nothing is touched or said.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.manifests import SCRATCH
from pipeline.partial import PartialArtifact
from pipeline.progress import Reporter
from pipeline.store import Store
from schemas.addresses import without_secrets
from schemas.canonical import digest
from schemas.errors import LockedError
from stages.ingest import snapshot

_PURPOSE = "purpose"
_TAKEN_OVER = ("ranges-*", "scores-*")
"""What of a scratch folder is as good with other files: parts of it are found by what they were made of."""
_OF_FILES = ("traces", "labels")
"""Params that files decide, those of traces and those of the recipe's data."""


def purpose_of(payload: Mapping[str, Any], addresses: Collection[str]) -> str:
    """What tells one command's snapshots from another's, whatever is in its files."""
    params = {name: value for name, value in payload["params"].items() if name not in _OF_FILES}
    return digest([{**payload, "params": params}, sorted(map(without_secrets, addresses))])


def settle_leftovers(store: Store, own: PartialArtifact | None, purpose: str, reporter: Reporter) -> None:
    """Take over, clear away or name what is unfinished in a store of snapshots.

    Args:
        store: of snapshots.
        own: the snapshot in the making, whose lock this process holds; None where it is there already.
        purpose: of it.
        reporter: where what was found is told.
    """
    if own is not None:
        (own.scratch / _PURPOSE).write_text(purpose, encoding="utf-8")
    for left in store.unfinished(snapshot.NAME):
        if own is not None and left == own.scratch.parent:
            continue
        try:
            with store.idle(left):
                said = _settled(store, left, own, purpose)
        except LockedError:
            continue
        reporter.note(said)


def clear_leftovers(store: Store) -> None:
    """Delete what ingests left unfinished, whichever: it may hold any trace. What another process works on stays."""
    for left in store.unfinished(snapshot.NAME):
        with suppress(LockedError), store.idle(left):
            store.give_up(left)


def _settled(store: Store, left: Path, own: PartialArtifact | None, purpose: str) -> str:
    """What became of an unfinished snapshot, in words."""
    scratch, size = left / SCRATCH, _size(left)
    note = scratch / _PURPOSE
    if not note.exists() or note.read_text(encoding="utf-8") != purpose:
        return (
            f"left unfinished by another command: {left} ({size}). That command goes on with it when it is run again; "
            "if it never is, delete the folder"
        )
    if own is not None:
        for path in [found for pattern in _TAKEN_OVER for found in sorted(scratch.glob(pattern))]:
            if not (own.scratch / path.name).exists():
                path.rename(own.scratch / path.name)
    store.give_up(left)
    return f"cleared away: {left} ({size}), begun by this command before its files changed; what still holds is kept"


def _size(folder: Path) -> str:
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
