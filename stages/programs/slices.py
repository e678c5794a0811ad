"""What of a recipe decides the program runs of any stage that makes some."""

from __future__ import annotations

from typing import Any

from schemas.recipe import Recipe


def run_slice(recipe: Recipe) -> dict[str, Any]:
    """For a recipe slice: the seed, how the model is held, the other LMs, and how program and metric are run."""
    return {
        "seed": recipe.seed,
        "model": {"dtype": recipe.model.dtype, "context": recipe.model.context},
        "lms": {name: lm.model_dump(mode="json") for name, lm in recipe.lms.items()},
        "program": {"timeout_s": recipe.program.timeout_s},
        "metric": recipe.metric.model_dump(mode="json"),
    }
