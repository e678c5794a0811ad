"""The objective: what the recipe asks for in TRL's words, and what TRL's loss does not know.

Changes from GRPO/TRL:

- Three policies instead of two. TRL clips w = pi_theta/pi_0, pi_0 being the adapter at the start of this stage; the
  policy mu that sampled the data enters as rho = pi_0/mu, detached, truncated or masked, multiplied into per-token
  advantages. pi_theta/mu is never clipped.
- Members have weights, normalised over the optimizer step: the step's loss is sum_i w_i l_i / sum_i w_i (or the same
  over tokens), whatever the micro-batches.
- A member may be a whole rollout (`group.unit = "trajectory"`), whose calls are one long completion here: each token
  weighs 1/(the rollout's tokens) in every loss, and what is of the sequence (ratio, rho, ESS) is of the rollout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from schemas.errors import RecipeError
from schemas.recipe import Recipe
from schemas.recipe_training import TrainSection
from stages.training.members import Members

Floats = npt.NDArray[np.float64]

TOKEN_LOSSES = ("bnpo", "dr_grpo", "dapo", "cispo")
"""TRL's losses in which tokens, not sequences, count equally."""
_BALANCES = {
    "grpo": ("sequence", "token", "module"),
    "sapo": ("sequence", "module"),
    "bnpo": ("token",),
    "dr_grpo": ("token",),
    "dapo": ("token",),
    "cispo": ("token",),
}
_TRAJECTORY_BALANCES = {
    "grpo": ("sequence",),
    "sapo": ("sequence",),
    "bnpo": ("sequence", "token"),
    "dapo": ("sequence", "token"),
    "cispo": ("sequence", "token"),
}
"""Rollouts count equally, whichever name of it the loss goes with. A sum over a constant (dr_grpo) is none of these."""


@dataclass(frozen=True)
class Objective:
    """The objective in TRL's words."""

    loss_type: str
    epsilon_low: float
    epsilon_high: float
    ratio_level: Literal["token", "sequence"]
    beta: float
    rho: Literal["truncate", "mask", "none"]
    rho_level: Literal["token", "sequence"]
    rho_max: float
    by_module: bool
    trajectory: bool
    """Whether each token weighs 1/(tokens of its unit, a rollout), also in losses over tokens."""
    length: int
    """The constant that dr_grpo divides by, in tokens."""


def objective_of(recipe: Recipe) -> Objective:
    """What a recipe trains on.

    `balance = "token"` with the default loss is Dr. GRPO's sum over a constant. CISPO clamps the ratio itself, in TRL
    at `epsilon_high`; the recipe's epsilon is the distance from 1 there as elsewhere.

    Raises:
        RecipeError: for combinations that have no meaning here, naming those that have.
    """
    train = recipe.train
    _refuse_unsupported(recipe)
    loss = "dr_grpo" if (train.loss, train.balance) == ("grpo", "token") else train.loss
    return Objective(
        loss_type=loss,
        epsilon_low=train.epsilon_low,
        epsilon_high=1.0 + train.epsilon_high if loss == "cispo" else train.epsilon_high,
        ratio_level=train.ratio_level,
        beta=train.beta,
        rho=train.rho,
        rho_level=train.rho_level,
        rho_max=train.rho_max,
        by_module=train.balance == "module",
        trajectory=recipe.group.unit == "trajectory",
        length=recipe.rollout.sampling.max_new_tokens,
    )


def _refuse_unsupported(recipe: Recipe) -> None:
    train = recipe.train
    if recipe.group.unit == "trajectory":
        _check_trajectory(train)
    else:
        _check_invocation(train)
    if recipe.group.unit == "trajectory" and recipe.adapter.modules != "shared":
        raise RecipeError(
            "group.unit = 'trajectory' goes with adapter.modules = 'shared': a rollout's calls are one member there, "
            "and a ratio over calls of several adapters would be that of no policy"
        )
    if recipe.group.unit == "trajectory" and train.module_norms:
        raise RecipeError(
            "train.module_norms goes with group.unit = 'invocation': a trajectory's loss is that of all its modules"
        )
    if "lm_head" in recipe.adapter.targets:
        raise RecipeError("adapter.targets names 'lm_head': the output embedding stays frozen; leave it out")


def _check_invocation(train: TrainSection) -> None:
    allowed = _BALANCES[train.loss]
    if train.balance not in allowed:
        raise RecipeError(
            f"train.loss = '{train.loss}' with train.balance = '{train.balance}': this loss goes with balance "
            f"{' or '.join(map(repr, allowed))}. The balance names what counts equally, and the loss fixes that."
        )
    if train.ratio_level == "sequence" and (train.loss not in ("grpo", "sapo") or train.balance == "token"):
        raise RecipeError(
            "train.ratio_level = 'sequence' goes with loss 'grpo' or 'sapo' and balance 'sequence' or 'module': summed "
            "over tokens it would weigh each sequence by its length"
        )


def _check_trajectory(train: TrainSection) -> None:
    if train.loss not in _TRAJECTORY_BALANCES:
        raise RecipeError(
            f"train.loss = '{train.loss}' with group.unit = 'trajectory': a sum over a constant has no place for "
            "tokens that weigh 1/(tokens of their rollout). Losses for trajectories: "
            f"{', '.join(_TRAJECTORY_BALANCES)}."
        )
    if train.balance not in _TRAJECTORY_BALANCES[train.loss]:
        raise RecipeError(
            f"train.balance = '{train.balance}' with train.loss = '{train.loss}' and group.unit = 'trajectory': each "
            "token weighs 1/(tokens of its rollout), so that rollouts count equally: set train.balance = 'sequence'"
        )


def why_nothing(members: Members, beta: float) -> str | None:
    """Why these members teach nothing, or None."""
    if len(members) == 0:
        return "no group has members to train on"
    if beta == 0 and not members.advantage.any():
        return "every advantage is 0 and train.beta is 0"
    return None


def check_steps(train: TrainSection, last: int) -> None:
    """Refuse a schedule that ends before the run does: it would train on with a learning rate of 0.

    Raises:
        RecipeError: naming the step that this stage ends at.
    """
    if train.schedule != "constant" and train.total_steps is not None and last > train.total_steps:
        raise RecipeError(
            f"train.total_steps = {train.total_steps}, but this iteration ends at step {last} of the run, where the "
            f"'{train.schedule}' schedule has come to 0: raise train.total_steps"
        )


@dataclass(frozen=True)
class Shares:
    """How much each of a step's members counts."""

    weight: Floats
    """(m,) of each member's unit: over the units of the step it sums to 1 for a mean of sequences."""
    tokens: float
    """Weighted completion tokens of the step, for the means over tokens; `weight` is then of a token."""


def step_shares(members: Members, chosen: list[int], objective: Objective) -> Shares:
    """The shares of a step's members.

    Sequence losses: w_i / sum w over units; balanced by module, each module's sum to the same. Token losses: the
    weights themselves, with sum_i w_i |o_i| as the number of items; tokens that weigh by their unit have w_i / |o_i|.
    """
    _, first, unit = np.unique(members.unit[chosen], return_index=True, return_inverse=True)
    weight = members.weight[chosen][first]
    lengths = np.bincount(unit, weights=members.tokens[chosen])
    token_loss = objective.loss_type in TOKEN_LOSSES
    if objective.by_module:
        modules, inverse = np.unique(members.module[chosen][first], return_inverse=True)
        weight = weight / np.bincount(inverse, weights=weight)[inverse] / len(modules)
    if objective.trajectory and token_loss:
        weight = weight / lengths
    tokens = float((weight * lengths).sum())
    if not objective.by_module and (not token_loss or objective.loss_type == "dr_grpo"):
        weight = weight / weight.sum()
    return Shares(weight[unit], tokens)


def bucket_factor(objective: Objective, weight: float, *, units: int, tokens: float, total_tokens: float) -> float:
    """What TRL's loss of one bucket (units of equal weight) is multiplied by, to add up to the step's loss.

    TRL's own normalisation of a bucket: grpo, sapo and dr_grpo divide by its units, bnpo by its tokens, dapo and
    cispo by the number of items that we pass, which is that of the whole step.
    """
    if objective.loss_type in ("grpo", "sapo", "dr_grpo"):
        return weight * units
    if objective.loss_type == "bnpo":
        return weight * tokens / total_tokens
    return weight
