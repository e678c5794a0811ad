"""What a report says of the engines that sampled, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sampled:
    """Calls of one iteration and source that were sampled alike: what their behaviour policy was."""

    iteration: int
    source: str
    engine: str | None
    """Name, version and dtype; None where nobody wrote it down."""
    logprob_kind: str | None
    """`processed`: of the distribution that was sampled from. None: no log-probabilities."""
    temperature: float | None
    top_p: float | None
    top_k: int | None
    max_new_tokens: int | None
    adapter: str | None
    """Digest; None for the base."""
    calls: int


@dataclass(frozen=True)
class EngineGap:
    """How far the engine's log-probabilities are from the trainer's of the same policy, in one iteration."""

    iteration: int
    completion_tokens: int
    mean: float | None
    """Mean |difference| of a token, nats."""
    p99: float | None
    """What 99 % of the tokens do not exceed, in the step where that is most."""
    largest: float | None
    ess: float | None
    """Effective sample size of the ratio of the two, mean over steps."""
    rho_cut: float | None
    """Share of tokens whose rho lay above `train.rho_max`; None where nothing is corrected."""
