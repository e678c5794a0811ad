"""What a report says of training, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One optimizer step, as the trainer logged it."""

    iteration: int
    step: int
    """Counted over the run. With several adapters each takes its own part of a step."""
    adapter: str
    figures: dict[str, float | None]


@dataclass(frozen=True)
class StepMeans:
    """Means over the optimizer steps that one adapter took in one iteration."""

    iteration: int
    adapter: str
    steps: int
    figures: dict[str, float | None]


@dataclass(frozen=True)
class AgeStats:
    """What the steps of one iteration did with members of one age."""

    iteration: int
    adapter: str
    age: int | None
    """Policies of the run newer than the one that sampled them; None for policies that are not of the run."""
    members: int
    completion_tokens: int
    ess: float | None
    clip_share: float | None
    kl_k1: float
    kl_k3: float
    entropy: float
    ratio_histogram: list[int] | None
    """Tokens by pi_theta/pi_0, in the bins of `RATIO_EDGES`."""
    rho_histogram: list[int] | None


@dataclass(frozen=True)
class ModuleStats:
    """What the steps of one iteration did with one module."""

    iteration: int
    adapter: str
    module: str
    members: int
    completion_tokens: int
    grad_norm: float | None
    """Mean over the steps; None where modules were not measured apart."""
