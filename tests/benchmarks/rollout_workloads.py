"""The workloads of the sampling benchmark: three shipped recipes, in their DSPy forms, cut to some rollouts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.recipes import LoadedRecipe, load_recipe
from schemas.execution import Execution
from stages import base, examples, program
from stages.contract import Inputs
from stages.engines.interface import Request, Sampling
from stages.engines.models import resolve_base
from stages.programs.load import program_identity
from tests.test_stages.train_kit import LocalOut, artifact

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = {
    "banking77": ("banking77_8", "pipeline.tasks.banking77_dspy"),
    "papillon": ("pupa", "pipeline.tasks.papillon_dspy"),
    "multihop": ("multihop", None),
}
"""Recipe folder, and the module of the program and metric where they are not the recipe's."""
GROUP = 8
"""Rollouts of an example."""


@dataclass(frozen=True)
class Task:
    """A workload on one machine: everything a contestant is given."""

    loaded: LoadedRecipe
    inputs: Inputs
    execution: Execution
    rollouts: int
    """Program runs, 8 on each example."""
    plain_rollouts: int
    """Of them, how many the plain ways make, which take long: rates are compared."""


def task(name: str, folder: Path, model: str, dtype: str, rollouts: int, execution: Execution) -> Task:
    """Make a workload's input artifacts in `folder`, by the stages that make them in a run."""
    assert rollouts % GROUP == 0, f"{rollouts} rollouts: expected a multiple of {GROUP}"
    recipe, module = WORKLOADS[name]
    settings = [f'model.base="{model}"', f"model.dtype={dtype}", "rollout.parse_retries=0"]
    settings += [f"rollout.rollouts={GROUP}", f"rollout.examples={rollouts // GROUP}"]
    if module:
        settings += [f"program.factory={module}:program", f"program.metric={module}:metric"]
    loaded = load_recipe(ROOT / "data" / recipe / "recipe.toml", settings)
    found = resolve_base(model, ROOT, Path(execution.cache) if execution.cache else None)
    digests = {"base": found.digest, "weights": found.weights, "tokenizer": found.tokenizer, "template": found.template}
    params = {
        examples: {},
        program: {"identity": program_identity(loaded.recipe, loaded.root)},
        base: {"base": {"name": found.name, **digests}},
    }
    made = {}
    for stage, given in params.items():
        out = LocalOut(folder / stage.NAME)
        figures = stage.run(Inputs({}, given, loaded.root), loaded.recipe, execution, out)
        made[stage.NAME] = artifact(out.root / "files")
    inputs = Inputs(made, {"iteration": 0, "policy": figures["policy"]}, loaded.root)
    return Task(loaded, inputs, execution, rollouts, rollouts)


def write_requests(file: Path, requests: Sequence[Request]) -> None:
    """Keep what an engine was asked, with no adapter."""
    assert all(request.adapter is None for request in requests)
    file.write_text(json.dumps([[one.prompt_ids, vars(one.sampling), one.seed] for one in requests]))


def read_requests(file: Path) -> list[Request]:
    """What `write_requests` kept."""
    kept = json.loads(file.read_text())
    return [Request(tuple(ids), replace(Sampling(), **sampling), seed) for ids, sampling, seed in kept]
