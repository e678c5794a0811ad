"""Rejection fine-tuning: supervised training on the best members of each group, from the same tables.

What it changes from mmGRPO: nothing is compared and nothing is corrected. Of every group the members of the highest
reward are kept, each with advantage 1, and what is minimised is their mean negative log-likelihood: TRL's CISPO loss
where the ratio is 1 by construction. It is the warm-up of a run (`rejection.iterations`), or a whole baseline.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.recipe import Recipe
from stages.training.members import Members
from stages.training.objective import Objective


def params_of(recipe: Recipe, iteration: int) -> dict[str, Any]:
    """What of the recipe makes an iteration one of rejection fine-tuning, for the key; empty for the others."""
    section = recipe.rejection
    if iteration >= section.iterations:
        return {}
    chosen = section.model_dump(mode="json", exclude={"iterations"})
    return {"rejection": chosen | {"failure_score": recipe.group.failure_score}}


def as_rejection(recipe: Recipe) -> Recipe:
    """The recipe that such an iteration is trained with: no ratio of any kind, and a KL of its own weight."""
    changes = {"beta": recipe.rejection.beta, "rho": "none", "behaviour": "logged", "ess_floor": 0.0}
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})


def rejection_objective(recipe: Recipe) -> Objective:
    """The objective: the mean over completions of their mean token loss, or over tokens, as `train.balance` says."""
    return Objective(
        loss_type="cispo",
        epsilon_low=0.0,
        epsilon_high=1.0,
        ratio_level="token",
        beta=recipe.rejection.beta,
        rho="none",
        rho_level="token",
        rho_max=1.0,
        by_module=recipe.train.balance == "module",
        trajectory=recipe.group.unit == "trajectory" or recipe.train.balance != "token",
        length=recipe.rollout.sampling.max_new_tokens,
    )


def best_of_groups(members: Members, recipe: Recipe) -> tuple[Members, dict[str, int]]:
    """The members that are trained on, with advantage 1.

    Returns:
        Them, and how many were left out by reason: `rejection_below_threshold`, `rejection_not_best`.
    """
    enough = _enough(members.reward, recipe)
    best = np.zeros(len(members), np.bool_)
    for group in np.unique(members.group):
        here = np.flatnonzero((members.group == group) & enough)
        units, first = np.unique(members.unit[here], return_index=True)
        order = np.argsort(-members.reward[here][first], kind="stable")  # of equal ones the first in the table
        best[here] = np.isin(members.unit[here], units[order[: recipe.rejection.best]])
    chosen = members.only(best)
    rows = tuple(replace(row, imitated=True) for row in chosen.rows)
    below, others = int((~enough).sum()), int((enough & ~best).sum())
    left_out = {"rejection_below_threshold": below, "rejection_not_best": others}
    return replace(chosen, advantage=np.ones(len(chosen)), rows=rows), {why: n for why, n in left_out.items() if n}


def _enough(reward: npt.NDArray[np.float64], recipe: Recipe) -> npt.NDArray[np.bool_]:
    threshold = recipe.rejection.threshold
    found: npt.NDArray[np.bool_] = reward > recipe.group.failure_score if threshold is None else reward >= threshold
    return found


def why_none(recipe: Recipe) -> str:
    """Why such an iteration trained nothing."""
    threshold = recipe.rejection.threshold
    least = f"more than {recipe.group.failure_score:g}" if threshold is None else f"{threshold:g} or more"
    return f"no member of a group earned {least}, so that rejection fine-tuning has no sample to learn from"
