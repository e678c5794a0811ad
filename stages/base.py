"""The base stage: the base model's digests become an artifact, and its policy the first row of the policy chain."""

from __future__ import annotations

from typing import Any

from schemas.canonical import canonical_json
from schemas.execution import Execution
from schemas.parquet import write_table
from schemas.policies import POLICIES, policy_digest
from schemas.recipe import Recipe
from stages.contract import Inputs, Out

NAME = "base"
VERSION = 1


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """Nothing of the recipe: the digests in the params say which model it is."""
    return {}


def run(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
    """Write base.json (name and digests of weights, tokenizer, template) and policies.parquet (the base policy)."""
    base = inputs.params["base"]
    draft = out.scratch / "base.json"
    draft.write_text(canonical_json(base) + "\n", encoding="utf-8")
    out.commit_shard("base.json", draft)
    policy = policy_digest(base["base"], {})
    row = {"policy": policy, "base": base["base"], "adapters": "{}", "parent": None, "iteration": 0}
    draft = out.scratch / "policies.parquet"
    write_table([row], draft, POLICIES)
    out.commit_shard("policies.parquet", draft)
    return {"policy": policy}
