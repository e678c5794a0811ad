"""What the drift checks say of each scored policy, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DriftRow:
    """One policy, over all of its calls or over those of one module. What could not be measured is None."""

    position: int
    module: str | None
    """None: of all modules."""
    calls: int | None
    kl_to_base: float | None
    """Nats a token."""
    entropy: float | None
    completion_tokens: float | None
    """Mean."""
    length_cut_share: float | None
    parse_failure_share: float | None
    top_completion_share: float | None
    """Of calls whose completion is one of the most frequent ones of its module."""
    top_completion_share_gain: float | None
    """The same less the base's."""


@dataclass(frozen=True)
class Canaries:
    """One policy's completions of prompts that never change, against the base's."""

    position: int
    n: int
    same_share: float | None
    mean_kl: float | None
    changed: tuple[str, ...]
    """Ids of those that changed."""


@dataclass(frozen=True)
class Drift:
    """All policies whose drift was measured."""

    rows: tuple[DriftRow, ...]
    canaries: tuple[Canaries, ...]
    alarms: dict[int, tuple[str, ...]]
    """By position: which limits of the recipe were passed."""

    @property
    def newest_alarms(self) -> tuple[str, ...]:
        """Those of the newest policy."""
        return self.alarms[max(self.alarms)] if self.alarms else ()
