"""What of a recipe decides the groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.errors import RecipeError
from schemas.recipe import Recipe
from schemas.recipe_data import GroupSection
from schemas.rollouts import INVOCATIONS

PATH = "path"
"""The key column that the stage makes itself: the modules called before, in order."""


@dataclass(frozen=True)
class Rules:
    """The recipe's rules for grouping."""

    group: GroupSection
    seed: int
    k: int
    """Members of a group (K)."""
    balance: str
    context: int
    """Longest prompt plus completion, in tokens."""
    held: frozenset[str] = frozenset()
    """Ids of examples that are not trained on; see `held_out`."""

    @property
    def trajectory(self) -> bool:
        """Whether whole rollouts are compared, not single invocations."""
        return self.group.unit == "trajectory"


def rules_of(recipe: Recipe) -> Rules:
    """The rules of a recipe.

    Raises:
        RecipeError: for fields that contradict each other.
    """
    group = recipe.group
    scalar = [field.name for field in INVOCATIONS.schema if "list" not in str(field.type)]
    for name in group.key_columns:
        if name != PATH and name not in scalar:
            allowed = ", ".join([PATH, *scalar])
            raise RecipeError(f"group.key_columns: '{name}' is no scalar column of invocations; expected of {allowed}")
    if group.unit == "trajectory":
        _check_trajectory(recipe)
    k = group.k or recipe.rollout.rollouts
    return Rules(group, recipe.seed, k, recipe.train.balance, recipe.model.context)


def _check_trajectory(recipe: Recipe) -> None:
    for name in ("credit", "key_columns", "strict"):
        if getattr(recipe.group, name):
            raise RecipeError(
                f"group.{name} belongs to unit = 'invocation': a trajectory has one reward and no modules"
            )
    if recipe.train.balance == "module":
        raise RecipeError("train.balance = 'module' belongs to unit = 'invocation': a trajectory weighs by its tokens")


def slice_of(recipe: Recipe) -> dict[str, Any]:
    """The part of the recipe that decides the groups, for the stage's key."""
    return {
        "seed": recipe.seed,
        "group": recipe.group.model_dump(mode="json"),
        "k": recipe.group.k or recipe.rollout.rollouts,
        "balance": recipe.train.balance,
        "context": recipe.model.context,
    }
