"""The ratio rho = pi_0/mu: bounded as the recipe says, and how many equally weighted samples it leaves."""

from __future__ import annotations

import torch

from stages.training.objective import Objective


def rho_of(
    old: torch.Tensor, mu: torch.Tensor, mask: torch.Tensor, objective: Objective
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ratio rho = pi_0/mu, truncated or masked.

    Args:
        old: (B, T) log-probabilities under pi_0, scored by the trainer.
        mu: (B, T) log-probabilities under mu.
        mask: (B, T) bool.
        objective: mode, level and bound.

    Returns:
        (B, T) factors for the advantages, and (B, T) bool: the tokens whose rho lay above the bound.
    """
    difference = (old - mu).masked_fill(~mask, 0.0)
    whole = difference.sum(-1)
    rho = (difference if objective.rho_level == "token" else whole[:, None].expand_as(old)).exp()
    bound = min(objective.rho_max, torch.finfo(rho.dtype).max)
    cut = (rho > bound) & mask
    return rho.clamp(max=bound) if objective.rho == "truncate" else rho.masked_fill(rho > bound, 0.0), cut


def effective_share(log_rho: torch.Tensor) -> float:
    """ESS as a share of the sample: (sum rho)^2 / (n sum rho^2), from log rho; in (0, 1]."""
    rho = (log_rho.double() - log_rho.max()).exp()  # a common factor changes nothing, and the largest is 1 then
    return float(rho.sum() ** 2 / (len(rho) * (rho**2).sum()))
