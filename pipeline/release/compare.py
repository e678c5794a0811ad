"""Comparisons of a run's policies on the same examples: to the base, to the one before, and to the released one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pipeline.release.records import decisions, released
from pipeline.release.scored import Scored, read_scored
from pipeline.release.slices import slices_of
from pipeline.reporting.opened import OpenRun, open_run
from schemas.decisions import Decision
from stages.statistics import Difference, Interval, bootstrap_seed, difference, mean_interval


@dataclass(frozen=True)
class SliceScore:
    """The part of a split that has one value of a metadata column. Not corrected for the number of slices."""

    column: str
    value: str
    score: Interval
    to_base: Difference | None
    to_released: Difference | None


@dataclass(frozen=True)
class Comparison:
    """One policy. A difference is None to the policy itself, and where there are no scores made in the same way."""

    position: int
    """In the run's chain of policies; 0 is the base."""
    policy: str
    score: Interval
    to_base: Difference | None
    to_previous: Difference | None
    """To the policy scored before it."""
    to_released: Difference | None
    """To what was released when the gate looked at it; where it did not, to what is released now."""
    released: str
    """The policy meant by that."""
    slices: tuple[SliceScore, ...] = ()
    """Worst first; of the newest scored policy and the released one only."""


def comparisons(run: Path, split: str | None = None) -> list[Comparison]:
    """Compare every policy of a run that was scored on a split.

    Args:
        run: its folder.
        split: default: the recipe's dev split.

    Raises:
        DataError: when the folder is no run, or its decisions are damaged.
    """
    opened = open_run(run)
    split = split or opened.recipe.examples.dev
    scored = _scored(opened, split)
    if not scored:
        return []
    made, moved = decisions(run), released(run)
    now = moved.policy if moved else opened.state.policies[0]
    sliced = {max(scored), *(position for position, item in scored.items() if item.policy == now)}
    newest: Scored | None = None
    found: list[Comparison] = []
    for position, item in scored.items():
        against = _against(item, made, now)
        base, standing = scored.get(0), _by_policy(scored, against)
        to_base, to_previous, to_released = (_to(item, other, opened) for other in (base, newest, standing))
        slices = _slices(opened, item, base, standing) if position in sliced else ()
        seed, resamples = bootstrap_seed(opened.recipe.seed), opened.recipe.evaluate.bootstrap
        score = mean_score(tuple(item.means.values()), seed, resamples)
        found.append(Comparison(position, item.policy, score, to_base, to_previous, to_released, against, slices))
        newest = item
    return found


def compare(a: Mapping[str, float], b: Mapping[str, float], seed: int, resamples: int) -> Difference | None:
    """The paired difference; None where the two were scored on different examples."""
    if a.keys() != b.keys():
        return None
    return _difference(tuple(sorted(a.items())), tuple(sorted(b.items())), seed, resamples)


@lru_cache(maxsize=4096)
def _difference(
    a: tuple[tuple[str, float], ...], b: tuple[tuple[str, float], ...], seed: int, resamples: int
) -> Difference:
    return difference(dict(a), dict(b), seed, resamples)


@lru_cache(maxsize=4096)
def mean_score(values: tuple[float, ...], seed: int, resamples: int) -> Interval:
    """Mean over examples with its interval; the same scores are resampled once in a process."""
    return mean_interval(values, seed, resamples)


def _scored(opened: OpenRun, split: str) -> dict[int, Scored]:
    """Scores by position."""
    keys = opened.state.evaluations.get(split, {})
    found: dict[int, Scored] = {}
    for position, policy in enumerate(opened.state.policies):
        artifact = opened.store.find("evaluate", keys[policy]) if policy in keys else None
        if artifact is not None and (item := read_scored(artifact, opened.recipe)) is not None:
            found[position] = item
    return found


def _by_policy(scored: dict[int, Scored], policy: str) -> Scored | None:
    return next((item for item in scored.values() if item.policy == policy), None)


def _against(item: Scored, made: list[Decision], now: str) -> str:
    """What the gate compared these scores with; what is released now, where it never did."""
    looked = [decision for decision in made if decision.kind == "gate" and decision.scores == item.artifact.digest]
    return looked[-1].previous if looked else now


def _to(item: Scored, other: Scored | None, opened: OpenRun) -> Difference | None:
    if other is None or other.policy == item.policy or other.way != item.way:
        return None
    return compare(item.means, other.means, bootstrap_seed(opened.recipe.seed), opened.recipe.evaluate.bootstrap)


def _slices(opened: OpenRun, item: Scored, base: Scored | None, released: Scored | None) -> tuple[SliceScore, ...]:
    """The slices of a policy's scores, the largest loss first, then the lowest score."""
    gate, seed, resamples = opened.recipe.gate, bootstrap_seed(opened.recipe.seed), opened.recipe.evaluate.bootstrap
    found: list[SliceScore] = []
    for column, value, examples in slices_of(opened, item.means, gate.slices, gate.min_slice_rows):
        part = _within(item, examples)
        to_base, to_released = (
            compare(part, _within(other, examples), seed, resamples)
            if other is not None and other.policy != item.policy and other.way == item.way
            else None
            for other in (base, released)
        )
        score = mean_score(tuple(part.values()), seed, resamples)
        found.append(SliceScore(column, value, score, to_base, to_released))
    return tuple(sorted(found, key=_badness))


def _within(item: Scored, examples: list[str]) -> dict[str, float]:
    return {example: item.means[example] for example in examples}


def _badness(part: SliceScore) -> tuple[float, float, str, str]:
    change = part.to_released or part.to_base
    return (change.estimate if change else 0.0, part.score.estimate, part.column, part.value)
