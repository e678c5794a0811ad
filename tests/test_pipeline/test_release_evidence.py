"""The evidence on a candidate, from scores that are given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from pipeline.release.evidence import weigh
from pipeline.release.scored import Scored
from schemas.decisions import Guarded, Look
from schemas.recipe import Recipe
from stages.contract import Artifact

EXAMPLES = 40


def _scored(policy: str, failed: int, value: float) -> Scored:
    """Scores of 1 but for runs that failed, of which there are no parts."""
    rows = tuple(
        (f"{place:02}", 0.0, dict[str, float]()) if place < failed else (f"{place:02}", 1.0, {"kept": value})
        for place in range(EXAMPLES)
    )
    artifact = cast("Artifact", SimpleNamespace(manifest=SimpleNamespace(key=policy)))
    return Scored(artifact, policy, {example: score for example, score, _ in rows}, rows)


def _guard(failed: int, value: float) -> Guarded:
    recipe = Recipe.model_validate(
        {
            "name": "guarded",
            "model": {"base": "tiny-random"},
            "program": {"factory": "a:b", "metric": "a:c"},
            "examples": {"path": "examples.csv", "inputs": ["text"]},
            "gate": {"guards": {"kept": 0.3}},
        }
    )
    look = Look.model_construct(digest="1" * 64, k=1, alpha=0.05, alpha_k=0.03, split="dev")
    (guard,) = weigh(_scored("a" * 64, failed, value), _scored("b" * 64, 0, value), look, recipe).guards
    return guard


def test_a_part_that_is_full_in_every_run_but_the_failed_is_lost_by_failing() -> None:
    guard = _guard(EXAMPLES // 2, 1.0)
    assert guard.estimate == pytest.approx(-0.5)
    assert (guard.missing, guard.held) == (EXAMPLES // 2, False)
    assert _guard(0, 1.0).held


def test_of_a_part_outside_0_and_1_the_lowest_value_seen_stands_for_failed_runs() -> None:
    assert _guard(EXAMPLES // 2, 7.0).estimate == 0.0
