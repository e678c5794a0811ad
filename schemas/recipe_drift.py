"""The drift and canaries sections of the recipe: from where on drift is an alarm, and the prompts that never change."""

from __future__ import annotations

from pydantic import Field

from schemas.sections import Count32, Section, Share


class DriftSection(Section):
    """From where on the figures of the drift stage are an alarm, which keeps a policy from being released.

    None of them is set by default. Each holds for all calls together, and for every module with enough of them.
    """

    max_kl: float | None = Field(default=None, ge=0)
    """Of KL(policy || base), in nats per token."""
    min_entropy: float | None = Field(default=None, ge=0)
    """Of the mean entropy of a token, in nats."""
    max_length_cut_share: Share | None = None
    """Of completions that the length limit cut."""
    max_parse_failure_share: Share | None = None
    """Of completions that did not parse, among those that were to."""
    max_top_completion_share_gain: Share | None = None
    """Of how much larger the share of a module's three most frequent completions is than the base's: collapse."""
    min_canary_same_share: Share | None = None
    """Of canaries whose completion is the base's, word for word."""
    max_canary_kl: float | None = Field(default=None, ge=0)
    """Of KL(policy || base) on the canaries' completions, in nats per token."""

    @property
    def of_canaries(self) -> list[str]:
        """Names of the thresholds that are set and need canaries."""
        return [name for name in ("min_canary_same_share", "max_canary_kl") if getattr(self, name) is not None]

    @property
    def set_ones(self) -> list[str]:
        """Names of the thresholds that are set."""
        return [name for name in type(self).model_fields if getattr(self, name) is not None]


class CanariesSection(Section):
    """Prompts that every policy completes greedily, to see what training has changed beside its task."""

    path: str | None = None
    """A JSONL file of {"id", "messages"}, relative to the recipe; none: no canaries."""
    max_new_tokens: Count32 = 48
