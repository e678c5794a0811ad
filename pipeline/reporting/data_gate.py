"""What the release gate said, and how each policy compares, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from stages.statistics import Interval


@dataclass(frozen=True)
class Decision:
    """One record of the run's decisions, in words."""

    kind: str
    """gate, release or rollback."""
    policy: str
    verdict: str
    reason: str
    alpha: float | None
    """What this look spent."""
    sign_flip_p: float | None
    moved: bool
    """Whether `released` moved to the policy."""


@dataclass(frozen=True)
class Slice:
    """Examples with one value of a metadata column: how the newest policy does on them."""

    column: str
    value: str
    n: int
    estimate: float
    difference: Interval | None
    """To the first policy."""


@dataclass(frozen=True)
class Gate:
    """All decisions of a run, and what they rest on."""

    decisions: tuple[Decision, ...]
    released: str | None
    """Digest; None while the base is what is released."""
    verdicts: dict[str, str]
    """By policy: the latest thing that the gate said of it."""
    to_released: dict[str, Interval]
    """By policy: the paired difference to what was released then."""
    p_values: dict[str, float]
    """By policy: of a sign-flip test of its difference to the first policy."""
    slices: tuple[Slice, ...]
    """Of the newest policy, the worst first."""
