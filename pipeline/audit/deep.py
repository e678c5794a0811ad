"""Everything of a run that can be computed anew without sampling or training, computed anew."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.audit import figures, groups, plans, policies
from pipeline.audit.check import Check, Run

CHECKS: tuple[Callable[[Run], Check], ...] = (
    figures.rollouts,
    groups.made_again,
    groups.accounted,
    figures.logprobs,
    plans.made_again,
    figures.steps,
    policies.recomputed,
    figures.scores,
)
"""In the order of an iteration."""


def audit(run: Run) -> list[Check]:
    """All checks, each over every artifact that it is about, those of earlier recipes too."""
    return [check(run) for check in CHECKS]
