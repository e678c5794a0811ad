"""The reward of a trace, from the scores that were logged of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from schemas.canonical import canonical_json
from schemas.recipe_ingest import IngestSection
from schemas.table import REWARD_BOUND
from stages.ingest.normal import Score
from stages.ingest.tree import Tree

NO_SCORE, SEVERAL_SCORES, SCORE_MISSING = "no_score", "several_scores", "score_missing"
CONTRADICTING, OUT_OF_RANGE = "contradicting_scores", "score_out_of_range"
Values = dict[str, list[float | None]]


def values_of(scores: Sequence[Score], tree: Tree | None) -> Values:
    """Scores of the whole trace by name, equal records once. Those of its root are of the whole; of other spans, not.

    A score whose value is no number counts as one that is missing.
    """
    root = tree.root.span if tree and tree.root else None
    whole = {(score.name, score.value, score.source) for score in scores if score.span in (None, root)}
    values: Values = {}
    for name, value, _ in sorted(whole, key=canonical_json) if len(whole) > 1 else whole:
        values.setdefault(name, []).append(value)
    return values


def reward_of(values: Mapping[str, Sequence[float | None]], section: IngestSection) -> tuple[float | None, str | None]:
    """The reward, and why there is none.

    Args:
        values: of the trace's scores, by name.
        section: names the score or the weights of several.
    """
    wanted = section.reward
    if wanted is None:
        if len(values) != 1:
            return None, SEVERAL_SCORES if values else NO_SCORE
        wanted = next(iter(values))
    weights = {wanted: 1.0} if isinstance(wanted, str) else wanted
    total = 0.0
    for name in sorted(weights):
        value, reason = _one(values.get(name, ()), section)
        if value is None:
            return None, reason
        total += weights[name] * value
    return (total, None) if abs(total) <= REWARD_BOUND else (None, OUT_OF_RANGE)


def _one(values: Sequence[float | None], section: IngestSection) -> tuple[float | None, str | None]:
    known = [value for value in values if value is not None]
    if not known:
        return None, SCORE_MISSING if values else NO_SCORE
    if len(set(known)) == 1:
        return known[0], None
    return (fmean(known), None) if section.repeated == "mean" else (None, CONTRADICTING)


def parts_of(values: Mapping[str, Sequence[float | None]], section: IngestSection) -> dict[str, float]:
    """The numbers of every score, for the rollout's reward parts."""
    found = {name: _one(values[name], section)[0] for name in sorted(values)}
    return {name: value for name, value in found.items() if value is not None and abs(value) <= REWARD_BOUND}
