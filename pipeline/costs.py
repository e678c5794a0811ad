"""The ledger of a run: what each of its artifacts took, by stage and iteration, each counted once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.costing import Spent, spent_of, together
from pipeline.manifests import read_stored
from pipeline.partial import TELEMETRY_FILE, read_sums
from pipeline.reporting.opened import OpenRun, open_run, telemetry
from pipeline.tombstones import tombstone_of
from schemas.telemetry import read_attempts, sum_attempts
from stages.contract import Artifact


@dataclass(frozen=True)
class Entry:
    """One artifact of the run."""

    stage: str
    iteration: int | None
    """None for what the whole run shares, and for scoring the policy that it started from."""
    key: str
    spent: Spent
    made_for: str | None
    """The run that it was made for, where that is another one, which shares its artifacts with this; else None."""
    recorded: bool
    """Whether it has any telemetry."""


@dataclass(frozen=True)
class Row:
    """Several artifacts together."""

    stage: str | None
    """None: of all stages."""
    iteration: int | None
    """None: of what comes before the iterations; in rows of a stage, and of the run, of all."""
    artifacts: int
    shared: int
    """How many of them were made for other runs."""
    silent: int
    """How many have recorded nothing of what they took, which makes the sums unknown."""
    spent: Spent


@dataclass(frozen=True)
class Ledger:
    """Everything that a run consists of, each artifact once."""

    name: str
    currency: str
    entries: tuple[Entry, ...]
    rows: tuple[Row, ...]
    """By iteration, what comes before them first; then by stage, in the order of the run."""
    iterations: tuple[Row, ...]
    stages: tuple[Row, ...]
    total: Row
    own: Spent
    """Without what was made for other runs."""
    unused: Spent | None
    """What the run's folder has beside: artifacts of earlier recipes, and unfinished ones. None where the folder's
    artifacts are shared with other runs."""


def ledger(run: Path) -> Ledger:
    """The ledger of a run, finished or not.

    Raises:
        DataError: naming the file, when run.json, a manifest or telemetry is damaged.
    """
    return ledger_of(open_run(run))


def ledger_of(run: OpenRun) -> Ledger:
    """The ledger of a run that is open."""
    entries = tuple(_entries(run))
    stages = list(dict.fromkeys(entry.stage for entry in entries))
    iterations = sorted({entry.iteration for entry in entries}, key=lambda index: -1 if index is None else index)

    def row(stage: str | None, *at: int | None) -> Row | None:
        found = [entry for entry in entries if stage in (None, entry.stage) and (not at or entry.iteration in at)]
        return _row(stage, at[0] if at else None, found) if found else None

    rows = (row(stage, iteration) for iteration in iterations for stage in stages)
    return Ledger(
        name=run.state.name,
        currency=run.recipe.prices.currency.upper(),
        entries=entries,
        rows=tuple(filter(None, rows)),
        iterations=tuple(filter(None, (row(None, iteration) for iteration in iterations))),
        stages=tuple(filter(None, map(row, stages))),
        total=_row(None, None, entries),
        own=together(entry.spent for entry in entries if entry.made_for is None),
        unused=_unused(run),
    )


def _row(stage: str | None, iteration: int | None, entries: Sequence[Entry]) -> Row:
    shared = sum(entry.made_for is not None for entry in entries)
    silent = sum(not entry.recorded for entry in entries)
    return Row(stage, iteration, len(entries), shared, silent, together(entry.spent for entry in entries))


def _entries(run: OpenRun) -> Iterator[Entry]:
    here, seen = run.store.place(run.folder), set[tuple[str, str]]()
    scored = _scored_after(run)
    for stage, iteration, key in run.chosen():
        artifact = run.store.find(stage, key)
        if artifact is None or (stage, key) in seen:
            continue
        seen.add((stage, key))
        made_for = artifact.manifest.provenance.get("run")
        yield Entry(
            stage=stage,
            iteration=scored.get(key, iteration),
            key=key,
            spent=_spent(run, artifact),
            made_for=None if made_for in (None, here) else made_for,
            recorded=bool(telemetry(artifact)),
        )


def _spent(run: OpenRun, artifact: Artifact) -> Spent:
    return spent_of(telemetry(artifact), read_attempts(artifact.path), run.recipe)


def _scored_after(run: OpenRun) -> dict[str, int]:
    """The iteration that made the policy which was scored, by the key of its scores, or of its drift."""
    made = {policy: place - 1 for place, policy in reversed(list(enumerate(run.state.policies)))}
    splits = [*run.state.evaluations.values(), *run.state.drifts.values()]
    scores = [item for split in splits for item in split.items()]
    return {key: made[policy] for policy, key in scores if made.get(policy, -1) >= 0}


def _unused(run: OpenRun) -> Spent | None:
    """What lies in the run's own store and is not chosen."""
    if run.store.place(run.folder) != ".":
        return None
    chosen = {run.store.folder(stage, key) for stage, _, key in run.chosen()}
    left = [path for _, path in run.store.all() if path not in chosen and tombstone_of(path) is None]
    finished = [_spent(run, Artifact(path, read_stored(path))) for path in left]
    return together([*finished, *(_unfinished(run, path) for path in run.store.unfinished())])


def _unfinished(run: OpenRun, folder: Path) -> Spent:
    attempts = read_attempts(folder)
    return spent_of(read_sums(folder / TELEMETRY_FILE) | sum_attempts(attempts), attempts, run.recipe)
