"""The evidence on a candidate: what it scores against what is released, at the level of the look."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.release.compare import compare
from pipeline.release.scored import Scored
from schemas.decisions import Evidence, Guarded, Look
from schemas.recipe import Recipe
from stages.statistics import bootstrap_seed, example_means, lower_bound, tail


def weigh(candidate: Scored, against: Scored, look: Look, recipe: Recipe, alarms: tuple[str, ...] = ()) -> Evidence:
    """Compare the scores and the guarded parts of a candidate with those of the released policy, on the same examples.

    Scores in [0, 1] are taken for those of a metric with that range; of others the range is what was seen.
    """
    seed, resamples = bootstrap_seed(recipe.seed), recipe.evaluate.bootstrap
    shown = compare(candidate.means, against.means, seed, resamples)
    assert shown is not None, "the gate compares scores of the same examples"
    differences = _differences(candidate.means, against.means)
    span = _span([score for scored in (candidate, against) for _, score, _ in scored.rows])
    lower = _lower(differences, span, look.alpha_k)
    return Evidence(
        ledger=recipe.gate.ledger,
        look=look.digest,
        k=look.k,
        alpha=look.alpha,
        alpha_k=look.alpha_k,
        split=look.split,
        against=against.policy,
        scores=candidate.artifact.manifest.key,
        against_scores=against.artifact.manifest.key,
        n=shown.n,
        score=_mean(candidate.means),
        against_score=_mean(against.means),
        estimate=shown.estimate,
        lower=lower,
        p=tail(differences, -span),
        low=shown.low,
        high=shown.high,
        sign_flip_p=shown.sign_flip_p,
        mcnemar_p=shown.mcnemar_p,
        improved=lower > 0,
        guards=tuple(_guarded(part, recipe.gate.guards[part], candidate, against, look) for part in recipe.gate.guards),
        alarms=alarms,
    )


def _guarded(part: str, margin: float, candidate: Scored, against: Scored, look: Look) -> Guarded:
    """Whether a part of the metric is non-inferior. A run without it, a failed one, counts as the lowest there is."""
    values = [parts.get(part) for scored in (candidate, against) for _, _, parts in scored.rows]
    seen = [float(value) for value in values if value is not None]
    missing = len(values) - len(seen)
    if not seen:
        return Guarded(part=part, margin=margin, estimate=None, lower=None, missing=missing, held=False)
    ours, theirs = (
        example_means([row[0] for row in scored.rows], [row[2].get(part) for row in scored.rows], _lowest(seen))
        for scored in (candidate, against)
    )
    differences = _differences(ours, theirs)
    lower = _lower(differences, _span(seen), look.alpha_k)
    estimate = sum(differences) / len(differences)
    return Guarded(part=part, margin=margin, estimate=estimate, lower=lower, missing=missing, held=lower > -margin)


def _differences(a: Mapping[str, float], b: Mapping[str, float]) -> list[float]:
    return [a[example] - b[example] for example in sorted(a)]


def _span(values: list[float]) -> float:
    """How far two scores can be apart."""
    if _within_one(values):
        return 1.0
    low, high = min(values), max(values)
    return (high - low) or abs(high)


def _lowest(values: list[float]) -> float:
    """The lowest score there can be: that of failed runs, also where all the others have the part in full."""
    return 0.0 if _within_one(values) else min(values)


def _within_one(values: list[float]) -> bool:
    return min(values) >= 0.0 and max(values) <= 1.0


def _lower(differences: list[float], span: float, alpha_k: float) -> float:
    """The lower bound; the lowest there can be where alpha is spent."""
    return lower_bound(differences, -span, alpha_k) if alpha_k > 0 else -span


def _mean(means: Mapping[str, float]) -> float:
    return sum(means.values()) / len(means)
