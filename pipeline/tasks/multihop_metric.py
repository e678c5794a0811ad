"""Recall of gold pages: the share of an example's gold titles among those of the passages that were found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.tasks.call import Example


def metric(example: Example, output: Any, _calls: Sequence[Any]) -> dict[str, float]:
    """Score with the parts `found` (gold titles), `complete` (1 when all are) and `passages` (how many were found)."""
    gold = set(example.labels["titles"])
    found = gold & set(output.titles)
    return {
        "score": len(found) / len(gold),
        "found": float(len(found)),
        "complete": float(found == gold),
        "passages": float(output.passages),
    }
