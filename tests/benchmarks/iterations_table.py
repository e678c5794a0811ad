"""The figures of the comparison of iterations: means over seeds, intervals over examples, and the table for README."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from stages.statistics import bootstrap_seed, mean_interval, paired_interval
from tests.benchmarks.iterations_units import BASE

Rows = Sequence[Mapping[str, Any]]


def summarise(rows: Rows, names: Sequence[str]) -> list[dict[str, Any]]:
    """One entry for each variant that has results, in the order of `names`.

    Intervals resample the test examples, each with its mean over the seeds: they speak for these seeds. The change is
    that to the base variant, over the seeds that both have; `changes` has it seed by seed.
    """
    by_variant = {name: {row["seed"]: row for row in rows if row["variant"] == name} for name in names}
    return [_entry(name, found, by_variant.get(BASE, {})) for name, found in by_variant.items() if found]


def _entry(name: str, found: Mapping[int, Mapping[str, Any]], base: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    seeds = sorted(found)
    both = [seed for seed in seeds if seed in base] if name != BASE else []
    change = paired_interval(_means(found, both), _means(base, both), bootstrap_seed(0)) if both else None
    return {
        "variant": name,
        "settings": found[seeds[0]]["settings"],
        "seeds": seeds,
        "before": _mean([found[seed]["test_first"]["estimate"] for seed in seeds]),
        "after": dataclasses.asdict(mean_interval(_means(found, seeds), bootstrap_seed(0))),
        "after_by_seed": [found[seed]["test_last"]["estimate"] for seed in seeds],
        "change": None if change is None else dataclasses.asdict(change),
        "changes": [
            round(found[seed]["test_last"]["estimate"] - base[seed]["test_last"]["estimate"], 6) for seed in both
        ],
        **{cost: _mean([found[seed][cost] for seed in seeds]) for cost in COSTS},
    }


def _means(found: Mapping[int, Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, float]:
    """Per test example, the mean of its scores over some seeds. Examples are named by their place."""
    columns = zip(*(found[seed]["test_scores"] for seed in seeds), strict=True)
    return {f"{place:06}": _mean(column) for place, column in enumerate(columns)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


COSTS = {
    "steps": "steps",
    "rollouts": "rollouts",
    "sampled_tokens": "tokens sampled",
    "trained_row_tokens": "tokens trained on",
    "stage_seconds": "stage seconds",
}


def markdown(summary: Sequence[Mapping[str, Any]]) -> str:
    """The table, one row a variant; empty without results."""
    if not summary:
        return ""
    heads = ["variant", "test score after", "by seed", "change to base", *COSTS.values()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *map(_cells, summary)))


def _cells(entry: Mapping[str, Any]) -> list[str]:
    settings = ", ".join(f"`{setting}`" for setting in entry["settings"])
    return [
        f"{entry['variant']}: {settings}" if settings else entry["variant"],
        _interval(entry["after"], sign=""),
        ", ".join(f"{score:.3f}" for score in entry["after_by_seed"]),
        "" if entry["change"] is None else _interval(entry["change"], sign="+"),
        *(f"{entry[cost]:,.0f}" for cost in COSTS),
    ]


def _interval(interval: Mapping[str, Any], sign: str) -> str:
    low, high = (f"{interval[end]:{sign}.3f}" for end in ("low", "high"))
    return f"{interval['estimate']:{sign}.3f} [{low}, {high}]"
