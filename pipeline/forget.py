"""`mmgrpo forget`: traces leave every snapshot, and what they had reached is named, purged or marked.

In this order, so that a killed process can begin again: successors are made, runs are seen to, and the snapshots that
held the traces are buried last.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.ingest_leftovers import clear_leftovers
from pipeline.ingest_spooling import FORGETTING, clear_spools
from pipeline.locks import hold
from pipeline.manifests import MANIFEST, read_manifest
from pipeline.partial import Reporter
from pipeline.reached import Sought, reach_all
from pipeline.remote.attached import shown
from pipeline.runfile import NAME as RUN_FILE
from pipeline.runs_purged import Purged, purge
from pipeline.snapshots import open_snapshot
from pipeline.store import Store
from pipeline.successor import Affected, affected, successor
from pipeline.tombstones import Tombstone, bury, forgotten_in, tombstone_of, trace_digest
from schemas.errors import RecipeError
from stages.engines.files import cache_folder
from stages.ingest import snapshot as stage
from stages.programs.answers import FOLDER as ANSWERS


@dataclass(frozen=True)
class Wanted:
    """What is to be forgotten."""

    traces: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    """Keys of users: all of their traces."""
    why: str = "requested"


@dataclass(frozen=True)
class Forgotten:
    """What was done."""

    traces: int
    snapshots: tuple[tuple[str, str | None], ...]
    """Folders that were purged, each with that of its successor."""
    runs: tuple[Purged, ...]
    caches: tuple[str, ...]
    """Folders that outlive runs and may hold something of them; nothing says what."""
    before: bool
    """Nothing was left to do: it had been forgotten already."""

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def forget(wanted: Wanted, snapshots: Path, runs: Sequence[Path], reporter: Reporter) -> Forgotten:
    """Forget traces.

    Args:
        wanted: which.
        snapshots: the folder of snapshots.
        runs: folders of runs that may have trained on them, or that hold such folders, as a study's does.
        reporter: where progress goes.

    Raises:
        RecipeError: when neither a snapshot nor a run holds them, or users' keys cannot be compared for want of their
            secret.
        DataError: when a snapshot or a run is damaged.
        LockedError: when a process works on one of the runs, or an ingest works in the folder of snapshots.
    """
    for named in runs:
        if not runs_below(named):
            raise RecipeError(f"--runs {named}: no run folder, there is no {RUN_FILE} in it or below it")
    runs = list({run.resolve(): run for named in runs for run in runs_below(named)}.values())
    with ExitStack() as alone:
        if snapshots.exists():  # an ingest that works there may hold them, and would bring them back
            alone.enter_context(hold(snapshots / FORGETTING, f"folder of snapshots {snapshots}", here=True))
        return _forget(wanted, snapshots, runs, reporter)


def _forget(wanted: Wanted, snapshots: Path, runs: Sequence[Path], reporter: Reporter) -> Forgotten:
    store = Store(snapshots)
    hit = _affected(_snapshots_of(store), wanted)
    every = [*hit, *_affected(_only_in(runs, store), wanted)]
    if not every:
        if wanted.traces and {trace_digest(name) for name in wanted.traces} <= forgotten_in(snapshots):
            _clear_unfinished(store)
            return Forgotten(0, (), (), _caches(), before=True)
        raise RecipeError(f"no snapshot in {snapshots} holds them, nor does a run. --snapshots and --runs name folders")
    made = [successor(item, store, reporter) for item in every]
    digests = tuple(sorted({trace_digest(name) for item in every for name in item.traces}))
    at = datetime.now(UTC).isoformat(timespec="seconds")

    def tombstone(item: Affected, after: Path | None) -> Tombstone:
        return Tombstone(
            artifact=item.snapshot.digest,
            traces=digests,
            by=getpass.getuser(),
            at=at,
            why=wanted.why,
            successor=None if after is None else shown(str(after.absolute())),
        )

    stones = [tombstone(item, after) for item, after in zip(every, made, strict=True)]
    by_key = {item.snapshot.manifest.key: stone for item, stone in zip(every, stones, strict=True)}
    purged = []
    with ExitStack() as held:
        for run in runs:
            held.enter_context(hold(run / ".lock", f"run folder {run}"))
        sought = reach_all(runs, _sought(every))
        purged += [purge(run, sought, by_key) for run in runs]
    buried = list(zip(hit, stones, strict=False))  # those that only runs hold come last, and are buried there
    for item, stone in buried:
        bury(item.snapshot.path, stone)
    _clear_unfinished(store)
    names = tuple((shown(str(item.snapshot.path)), stone.successor) for item, stone in buried)
    return Forgotten(len(digests), names, tuple(found for found in purged if found.lines), _caches(), before=False)


def _snapshots_of(store: Store) -> list[Path]:
    return [path for name, path in store.all() if name == stage.NAME and tombstone_of(path) is None]


def _only_in(runs: Sequence[Path], store: Store) -> list[Path]:
    """Snapshots that runs have taken in and that do not lie in their own folder (any more), each once."""
    folders = [path for run in runs for path in _snapshots_of(Store(run / "artifacts"))]
    found = {read_manifest(path / MANIFEST).key: path for path in folders}
    known = {read_manifest(path / MANIFEST).key for path in _snapshots_of(store)}
    return [path for name, path in sorted(found.items()) if name not in known]


def _affected(folders: Iterable[Path], wanted: Wanted) -> list[Affected]:
    return [found for path in folders if (found := affected(open_snapshot(path), wanted.traces, wanted.users))]


def _caches() -> tuple[str, ...]:
    """Judges are asked about outputs and may repeat them. What they said is kept by digests of questions."""
    answers = cache_folder(None) / ANSWERS
    return (str(answers),) if answers.exists() and any(answers.iterdir()) else ()


def _clear_unfinished(store: Store) -> None:
    """Delete what stopped ingests left beside the snapshots: it holds texts of traces, and may hold those."""
    clear_spools(store.root)
    clear_leftovers(store)


def runs_below(folder: Path) -> list[Path]:
    """The run folders at and below a folder, sorted: also those of studies, and those that lie in another run's."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "artifacts" and not name.startswith(".")]
        if RUN_FILE in files:
            found.append(Path(place))
    return sorted(found)


def _sought(hit: Iterable[Affected]) -> Sought:
    hit = list(hit)
    return Sought(
        snapshots={item.snapshot.digest for item in hit},
        examples_files={item.snapshot.manifest.files["examples.parquet"].sha256 for item in hit},
        rollouts={name for item in hit for name in item.rollouts},
        examples={name for item in hit for name in item.examples},
    )


def render(found: Forgotten) -> str:
    """In words: what was purged, and what the traces had reached."""
    caches = [
        f"{folder}: answers of judges, who may have repeated them. Delete the folder if one was asked about these "
        "traces: judges are asked again"
        for folder in found.caches
    ]
    if found.before:
        return "\n".join(
            ["Forgotten before: neither a snapshot nor a run that was named holds them any more.", *caches]
        )
    lines = [f"{found.traces} trace{'' if found.traces == 1 else 's'} forgotten"]
    for folder, after in found.snapshots:
        lines.append(f"purged {folder}; " + (f"its successor is {after}" if after else "nothing was left of it"))
    for run in found.runs:
        lines += ["", f"{run.run}:", *(f"  {line}" for line in run.lines)]
    lines += ["", *caches] if caches else []
    return "\n".join(lines)
