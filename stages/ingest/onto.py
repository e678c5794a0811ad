"""New traces onto an older snapshot: its rows stay, those of a trace that came again are taken from the new one.

A trace is taken as a whole: where it comes again with other content, its newer record stands for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from schemas.parquet import preflight
from schemas.traces import TRACES


@dataclass(frozen=True)
class Onto:
    """A snapshot that others come onto."""

    folder: Path
    again: frozenset[str]
    """Its traces that are given anew: what it holds of them is left."""
    scored: bool
    """Whether logged scores count when two records of a trace are compared."""
    traces: int
    """That stay."""
    spans: int
    """Of those."""


def onto(folder: Path, new: Collection[str], *, scored: bool = True) -> Onto:
    """What stays of a snapshot when traces of these ids come onto it.

    Raises:
        DataError: when its table of traces is damaged.
    """
    path = folder / f"{TRACES.name}.parquet"
    preflight(path, TRACES)
    table = pq.read_table(path, columns=["trace", "spans"])
    spans = dict(zip(table["trace"].to_pylist(), table["spans"].to_pylist(), strict=True))
    again = frozenset(spans.keys() & new)
    stay = [count for name, count in spans.items() if name not in again]
    return Onto(folder, again, scored, len(stay), sum(stay))


def compared(new: int, before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, int]:
    """How many traces were `added`, `replaced` and the `same`; what there is none of is left out.

    Args:
        new: how many traces are new or came again.
        before: fingerprints of the records that the older snapshot has of those that came again, by trace.
        now: those of their new records.
    """
    same = sum(before[name] == now[name] for name in before)
    counts = Counter(added=new - len(before), replaced=len(before) - same, same=same)
    return dict(sorted((+counts).items()))
