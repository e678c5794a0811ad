"""What the release gate said, and how each policy compares, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.release.compare import SliceScore
from stages.statistics import Difference


@dataclass(frozen=True)
class Decided:
    """One decision of the run: by the gate, or by hand."""

    number: int
    kind: str
    """gate, release or rollback."""
    verdict: str
    """released or kept."""
    policy: str
    position: int | None
    at: str
    """When, UTC."""
    reason: str
    forced: bool
    look: int | None
    """Its number in the ledger of looks; None for a decision without evidence."""
    alpha: float | None
    """What all looks together may spend."""
    spent: float | None
    """What this one did."""
    estimate: float | None
    """Mean paired difference to what was released."""
    lower: float | None
    """Its lower bound at the level of the look."""
    p: float | None
    """One-sided, of no improvement."""
    alarms: tuple[str, ...]


@dataclass(frozen=True)
class PolicyDifference:
    """How one policy compares to others on the same examples."""

    position: int
    policy: str
    to_base: Difference | None
    to_previous: Difference | None
    to_released: Difference | None
    """To what was released when the gate looked."""


@dataclass(frozen=True)
class Gate:
    """All decisions of a run, and what they rest on."""

    rule: str
    decisions: tuple[Decided, ...]
    released: str | None
    """Digest; None while the base is what is released."""
    differences: tuple[PolicyDifference, ...]
    slices: tuple[SliceScore, ...]
    """Of the newest scored policy, the worst first."""
    slices_left_out: int

    def verdict_of(self, policy: str) -> str | None:
        """What was decided last of a policy."""
        told = [decision.verdict for decision in self.decisions if decision.policy == policy]
        return told[-1] if told else None

    def difference_of(self, position: int) -> PolicyDifference | None:
        """How the policy at a position compares."""
        return next((row for row in self.differences if row.position == position), None)
