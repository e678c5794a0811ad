"""Which train examples an optimizer sees, and which of them candidates are scored on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from schemas.canonical import seed_from
from schemas.errors import DataError
from schemas.recipe import Recipe

SCORED_AT_MOST = {"light": 100, "medium": 300, "heavy": 1000}
"""Validation examples by `prompts.auto`: DSPy's own numbers."""


@dataclass(frozen=True)
class Split:
    """Rows of the examples table: those that demonstrations come from, and those that candidates are scored on."""

    train: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    left_out: dict[str, int]
    """Train examples that are in neither, by reason."""


def split_examples(rows: Sequence[dict[str, Any]], recipe: Recipe, iteration: int) -> Split:
    """Split the train examples in two, in an order drawn by the seed and the iteration.

    Args:
        rows: the train split.
        recipe: says how many are used, and the share for validation.
        iteration: before which the prompts are made.

    Raises:
        DataError: when there are not two examples.
    """
    section = recipe.prompts
    order = sorted(rows, key=lambda row: seed_from(recipe.seed, "prompts", iteration, row["example_id"]))
    used = order[: section.examples]
    if len(used) < 2:
        raise DataError(
            f"split '{recipe.examples.train}' has {len(rows)} example(s): prompts are optimized on at least two, one "
            "for demonstrations and one to score on"
        )
    scored = min(len(used) - 1, max(1, int(len(used) * section.validation)))
    validation, train = used[:scored], used[scored:]
    kept = validation[: SCORED_AT_MOST[section.auto]] if section.optimizer == "mipro" else validation
    beyond = {
        "beyond prompts.examples": len(order) - len(used),
        f"validation beyond what prompts.auto = '{section.auto}' scores": len(validation) - len(kept),
    }
    return Split(train, kept, {reason: count for reason, count in beyond.items() if count})
