"""New traces onto an older snapshot: its rows stay, those of a trace that came again are taken from the new one.

A trace is taken as a whole: where it comes again with other content, its newer record stands for it. Where only scores
of it come, as of people who judge what was logged before, its older record stays, and they stand for those of their
names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from schemas.parquet import preflight
from schemas.recipe_ingest import IngestSection
from schemas.traces import TRACES
from stages.ingest.records import Record
from stages.ingest.rewards import Values, parts_of, reward_of
from stages.ingest.stored import canonical_bytes


@dataclass(frozen=True)
class Onto:
    """A snapshot that others come onto."""

    folder: Path
    again: frozenset[str]
    """Its traces that are given anew: what it holds of them is left."""
    late: frozenset[str]
    """Its traces of which nothing but scores is given: what it holds of them stays, with these."""
    scored: bool
    """Whether logged scores count when two records of a trace are compared."""
    traces: int
    """That stay."""
    spans: int
    """Of those."""
    shorter: int
    """Traces that are given anew with fewer spans: perhaps the rest of traces that were cut over two exports."""


def onto(folder: Path, new: Mapping[str, int], *, scored: bool = True) -> Onto:
    """What stays of a snapshot when traces come onto it.

    Args:
        folder: of the snapshot.
        new: spans of the traces, by their ids.
        scored: see `Onto`.

    Raises:
        DataError: when its table of traces is damaged.
    """
    path = folder / f"{TRACES.name}.parquet"
    preflight(path, TRACES)
    table = pq.read_table(path, columns=["trace", "spans"])
    spans = dict(zip(table["trace"].to_pylist(), table["spans"].to_pylist(), strict=True))
    again = frozenset(name for name in spans if new.get(name))
    late = frozenset(name for name in spans if new.get(name) == 0)
    stay = [count for name, count in spans.items() if name not in again]
    shorter = sum(new[name] < spans[name] for name in again)
    return Onto(folder, again, late, scored, len(stay), sum(stay), shorter)


def judged_late(record: Record, values: Values, section: IngestSection) -> Record:
    """An older record with scores that came later, and the reward that follows from all of them.

    Args:
        record: of a trace.
        values: its new scores by name; they stand for the older ones of these names.
        section: says which of them is the reward.
    """
    known = {**orjson.loads(record.trace["scores"]), **values}
    trace: dict[str, Any] = {**record.trace, "scores": canonical_bytes(known).decode()}
    if record.rollout is None:
        return record._replace(trace=trace)
    parts = parts_of(known, section)
    rollout = {**record.rollout, "reward_parts": canonical_bytes(parts).decode() if parts else None}
    if not _own_reward(rollout, known, section):
        reward, trace["reward_reason"] = reward_of(known, section)
        rollout["reward"] = None if rollout["error"] else reward
    return record._replace(trace=trace, rollout=rollout)


def _own_reward(rollout: Mapping[str, Any], values: Values, section: IngestSection) -> bool:
    """Whether the reward of one of our own tables stays: the recipe names no scores that are all there."""
    wanted = [section.reward] if isinstance(section.reward, str) else list(section.reward or ())
    return rollout["program"] is not None and not (wanted and all(name in values for name in wanted))


def compared(older: Onto, new: int, before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, int]:
    """How many traces were `added`, `replaced` and the `same`, and of those replaced, how many are `shorter`.

    What there is none of is left out.

    Args:
        older: the snapshot that they came onto.
        new: how many traces are new or came again.
        before: fingerprints of the records that the older snapshot has of those that came again, by trace.
        now: those of their new records.
    """
    same = sum(before[name] == now[name] for name in before)
    counts = Counter(added=new - len(before), replaced=len(before) - same, same=same, shorter=older.shorter)
    return dict(sorted((+counts).items()))
