"""What metrics and their LM calls depend on, from the recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from schemas.execution import Execution
from schemas.recipe import Recipe
from schemas.recipe_data import OtherLM
from stages.engines.files import cache_folder
from stages.programs.answers import FOLDER, Answers
from stages.programs.session import Judging


def judging_of(recipe: Recipe, execution: Execution, base: str, seed: int) -> Judging:
    """How a stage runs the recipe's metric.

    Args:
        recipe: its `metric` and `lms`.
        execution: where the cache is, in which answers of judges are kept.
        base: the digest of the base model.
        seed: of the draws of judges.
    """
    cache = cache_folder(Path(execution.cache) if execution.cache else None)
    own = {"base": base, "dtype": recipe.model.dtype, "context": recipe.model.context}
    return Judging(
        section=recipe.metric,
        seed=seed,
        identity={name: _identity(lm, own) for name, lm in recipe.lms.items()},
        answers=Answers(cache / FOLDER),
    )


def _identity(lm: OtherLM, own: dict[str, Any]) -> dict[str, Any]:
    return {"url": lm.url, "model": lm.model} if lm.kind == "openai" else own
