"""What two runs came to: their artifacts up to where they part, and their scores example by example."""

from __future__ import annotations

from typing import Any

from pipeline.comparing.sides import Side
from pipeline.jobs import changes
from schemas.parquet import read_frame
from schemas.scores import SCORES
from stages.contract import Artifact
from stages.statistics.intervals import bootstrap_seed, mean_interval, paired_interval
from stages.statistics.means import example_means


def artifacts(a: Side, b: Side) -> dict[str, Any]:
    """The artifacts that differ, the first of them with what its key says of why; empty where all are equal."""
    names = list(dict.fromkeys([*a.artifacts, *b.artifacts]))
    order = sorted(names, key=lambda name: _place(name, a, b))
    pairs = {name: (a.artifacts.get(name), b.artifacts.get(name)) for name in order}
    differ = {name: [item.digest if item else None for item in pair] for name, pair in pairs.items() if not _same(pair)}
    if not differ:
        return {}
    first = next(iter(differ))
    before = [name for name in order[: order.index(first)] if name not in differ]
    return {"same_before": len(before), "part_at": first, "why": _why(pairs[first]), "differ": differ}


def _place(name: str, a: Side, b: Side) -> int:
    return max(list(side.artifacts).index(name) for side in (a, b) if name in side.artifacts)


def _same(pair: tuple[Artifact | None, Artifact | None]) -> bool:
    return pair[0] is not None and pair[1] is not None and pair[0].digest == pair[1].digest


def _why(pair: tuple[Artifact | None, Artifact | None]) -> list[str]:
    """What differs in the keys; with equal keys, that the same job came out otherwise."""
    if pair[0] is None or pair[1] is None:
        return ["only the first run has it" if pair[0] else "only the second run has it"]
    found = changes(pair[0].manifest.payload, pair[1].manifest.payload)
    return found or [
        "the same job with the same inputs came out otherwise: other last bits of what was sampled, machine or release"
    ]


def scores(a: Side, b: Side) -> dict[str, Any]:
    """Scores that differ: means with intervals, and the difference (second minus first) over the same examples.

    Where only one run was scored the other's mean is None.
    """
    found: dict[str, Any] = {}
    seed, resamples = bootstrap_seed(a.recipe.seed), a.recipe.evaluate.bootstrap
    for name in dict.fromkeys([*a.artifacts, *b.artifacts]):
        if not name.startswith("scores on"):
            continue
        pair = (a.artifacts.get(name), b.artifacts.get(name))
        means = [None if item is None else _means(item) for item in pair]
        if means[0] == means[1]:
            continue
        about: dict[str, Any] = {"means": [item and _interval(item, seed, resamples) for item in means]}
        common = sorted(set.intersection(*(set(item or {}) for item in means)))
        if common:
            first, second = ({key: item[key] for key in common} for item in means if item)
            paired = paired_interval(second, first, seed, resamples)
            about["difference"] = {"estimate": paired.estimate, "low": paired.low, "high": paired.high, "n": paired.n}
            about["examples_that_differ"] = sum(first[key] != second[key] for key in common)
        found[name] = about
    return found


def _means(item: Artifact) -> dict[str, float]:
    rows = read_frame(item.file("scores.parquet"), SCORES, columns=["example_id", "score"], validate=False)
    missing = item.manifest.payload["recipe"]["evaluate"]["failure_score"]
    return example_means(rows["example_id"].to_list(), rows["score"].to_list(), missing)


def _interval(means: dict[str, float], seed: int, resamples: int) -> dict[str, Any]:
    found = mean_interval(means, seed, resamples)
    return {"mean": found.estimate, "low": found.low, "high": found.high, "n": found.n}
