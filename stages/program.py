"""The program stage: the program's identity becomes an artifact that every later key depends on."""

from __future__ import annotations

from typing import Any

from schemas.canonical import canonical_json
from schemas.execution import Execution
from schemas.recipe import Recipe
from stages.contract import Inputs, Out

NAME = "program"
VERSION = 1


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """Nothing of the recipe: the identity in the params holds all of it."""
    return {}


def run(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
    """Write program.json: factory, metric, arguments, state, and the digest of every file of the program's code."""
    draft = out.scratch / "program.json"
    draft.write_text(canonical_json(inputs.params["identity"]) + "\n", encoding="utf-8")
    out.commit_shard("program.json", draft)
    return {}
