"""Scores of the policies of a run, with intervals and paired differences."""

from __future__ import annotations

from pipeline.reporting.data import PolicyScore, SplitScores
from pipeline.reporting.opened import OpenRun, frame
from schemas.scores import SCORES
from stages.contract import Artifact
from stages.statistics import Interval, bootstrap_seed, example_means, mean_interval, paired_interval


def collect_scores(run: OpenRun, split: str) -> SplitScores:
    """Score every policy that was evaluated on a split; one that was not is left out of the list."""
    keys = run.state.evaluations.get(split, {})
    seed, resamples = bootstrap_seed(run.recipe.seed), run.recipe.evaluate.bootstrap
    rows: list[PolicyScore] = []
    seen: list[dict[str, float]] = []
    for position, policy in enumerate(run.state.policies):
        artifact = run.store.find("evaluate", keys[policy]) if policy in keys else None
        if artifact is None:
            continue
        means, total, failed = _example_scores(artifact, run.recipe.evaluate.failure_score)
        if not means:
            continue
        to_first = _difference(means, seen[0], seed, resamples) if seen else None
        to_previous = _difference(means, seen[-1], seed, resamples) if seen else None
        score = mean_interval(means, seed, resamples)
        rows.append(PolicyScore(position, policy, score, total, failed, to_first, to_previous, _parts(artifact)))
        seen.append(means)
    return SplitScores(split, tuple(rows))


def _example_scores(artifact: Artifact, failure_score: float) -> tuple[dict[str, float], int, int]:
    """Mean score of each example, number of rows, and number of rows whose run failed."""
    table = frame(artifact, SCORES, ["example_id", "score"])
    scores = table["score"]
    return (
        example_means(table["example_id"].to_list(), scores.to_list(), failure_score),
        len(table),
        scores.null_count(),
    )


def _parts(artifact: Artifact) -> dict[str, float]:
    """Means of the metric's named parts, as the evaluate stage summed them up."""
    parts = artifact.manifest.metrics.get("parts") or {}
    return {str(name): float(mean) for name, mean in sorted(parts.items()) if mean is not None}


def _difference(a: dict[str, float], b: dict[str, float], seed: int, resamples: int) -> Interval | None:
    """The paired difference, or None where the two were scored on different examples (after a change of recipe)."""
    return paired_interval(a, b, seed, resamples) if a.keys() == b.keys() else None
