"""Scores of the policies of a run, with intervals and paired differences."""

from __future__ import annotations

import polars as pl

from pipeline.alike import way_of
from pipeline.release.compare import compare, mean_score
from pipeline.reporting.data import PolicyScore, SplitScores
from pipeline.reporting.opened import OpenRun, frame
from schemas.scores import SCORES
from stages.contract import Artifact
from stages.programs.figures import status_counts
from stages.statistics import bootstrap_seed, example_means


def collect_scores(run: OpenRun, split: str) -> SplitScores:
    """Score every policy that was evaluated on a split; one that was not is left out of the list."""
    keys = run.state.evaluations.get(split, {})
    seed, resamples = bootstrap_seed(run.recipe.seed), run.recipe.evaluate.bootstrap
    rows: list[PolicyScore] = []
    seen: list[tuple[dict[str, float], str]] = []
    for position, policy in enumerate(run.state.policies):
        artifact = run.store.find("evaluate", keys[policy]) if policy in keys else None
        if artifact is None:
            continue
        table = frame(artifact, SCORES, ["example_id", "score", "status"])
        means = example_means(
            table["example_id"].to_list(), table["score"].to_list(), run.recipe.evaluate.failure_score
        )
        if not means:
            continue
        way = way_of(artifact)
        ends = [
            compare(means, others, seed, resamples) if made == way else None for others, made in seen[:1] + seen[-1:]
        ]
        to_first, to_previous = ends or (None, None)
        rows.append(
            PolicyScore(
                position=position,
                policy=policy,
                score=mean_score(tuple(means.values()), seed, resamples),
                rows=len(table),
                failed=table["score"].null_count(),
                failures=_failures(table),
                artifact=artifact.path.relative_to(run.folder).as_posix(),
                to_first=to_first,
                to_previous=to_previous,
                parts=_parts(artifact),
                first_valid=artifact.manifest.metrics.get("parse_first_attempt_valid"),
                engines=artifact.manifest.metrics.get("engines") or {},
            )
        )
        seen.append((means, way))
    return SplitScores(split, tuple(rows))


def _failures(table: pl.DataFrame) -> dict[str, int]:
    return {status: count for status, count in status_counts(table).items() if status != "ok"}


def _parts(artifact: Artifact) -> dict[str, float]:
    """Means of the metric's named parts, as the evaluate stage summed them up."""
    parts = artifact.manifest.metrics.get("parts") or {}
    return {str(name): float(mean) for name, mean in sorted(parts.items()) if mean is not None}
