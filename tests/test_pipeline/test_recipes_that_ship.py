"""Recipes that ship: they load, what they ask for can be trained, and those of the paper have its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.recipes import load_recipe
from schemas.recipe import Recipe
from stages.drifting.canaries import identify_canaries
from stages.grouping.rules import rules_of
from stages.training.objective import objective_of
from stages.training.truncated import check_sampling
from tests.benchmarks.gpu_budget import CARDS, MODELS, memory_lines, time_lines

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("data/*/recipe*.toml"))
QWEN = {"beta": 0.01, "grad_clip": 0.1, "top_p": 0.95, "top_k": 20}
LLAMA = {"beta": 0.04, "grad_clip": 0.5, "top_p": 0.9, "top_k": None}


def recipe(path: str) -> Recipe:
    return load_recipe(ROOT / path, []).recipe


@pytest.mark.parametrize("path", SHIPPED)
def test_every_recipe_loads_and_nothing_it_asks_for_is_refused(path: str):
    found = recipe(path)
    rules_of(found)
    objective_of(found)
    check_sampling(found)
    assert (ROOT / path).with_name(found.examples.path).is_file()
    assert (identify_canaries(found, (ROOT / path).parent) is None) == (found.canaries.path is None)


def of_the_paper(found: Recipe) -> dict[str, Any]:
    """What the paper says of its training, whatever the model."""
    group, adapter, train = found.group, found.adapter, found.train
    return {
        "rollouts": (found.rollout.rollouts, found.rollout.parse_retries, found.rollout.sampling.max_new_tokens),
        "group": (group.pad, group.select, group.k or found.rollout.rollouts, group.baseline, group.scale),
        "failures": (group.format_failure_score, group.failure_score),
        "adapter": (adapter.r, adapter.alpha, len(adapter.targets), adapter.modules),
        "step": (train.learning_rate, train.examples_per_step, train.epochs, train.loss, train.balance),
    }


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("data/banking77/recipe.toml", QWEN),
        ("data/banking77/recipe_llama.toml", LLAMA),
        ("data/multihop/recipe_paper.toml", QWEN),
    ],
)
def test_the_8b_recipes_have_the_papers_settings(path: str, model: dict[str, Any]):
    found = recipe(path)
    sampling = found.rollout.sampling
    told = {name: getattr(found.train, name) for name in ("beta", "grad_clip")}
    assert told | {"top_p": sampling.top_p, "top_k": sampling.top_k} == model
    assert sampling.temperature == 0.6
    assert found.evaluate.sampling.model_dump() == sampling.model_dump()
    assert found.adapter.dropout == 0.05
    assert found.train.truncated_sampling == "renormalised"
    assert found.rollout.examples * found.run.iterations == 750 * found.train.examples_per_step
    assert of_the_paper(found) == of_the_paper(recipe("data/tiny/recipe.toml").model_copy(update=defaults()))


def defaults() -> dict[str, Any]:
    """Sections of `preset = "paper"` where a recipe sets nothing."""
    sections = ("rollout", "group", "adapter", "train")
    return {name: Recipe.model_fields[name].get_default(call_default_factory=True) for name in sections}


def test_the_preset_is_the_papers_but_for_sampling_and_dropout():
    preset = defaults()
    assert of_the_paper(recipe("data/tiny/recipe.toml").model_copy(update=preset)) == {
        "rollouts": (12, 3, 1032),
        "group": ("fill", "max_variance", 12, "group_mean", "group_std"),
        "failures": (-1.0, 0.0),
        "adapter": (16, 64, 7, "shared"),
        "step": (1e-5, 4, 1, "grpo", "sequence"),
    }
    assert (preset["train"].beta, preset["train"].grad_clip) == (QWEN["beta"], QWEN["grad_clip"])
    sampling = preset["rollout"].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, preset["adapter"].dropout) == (1.0, None, None, 0.0)


def test_the_tables_of_what_8b_models_need_are_those_of_the_readme():
    readme = (ROOT / "README.md").read_text()
    for line in (*memory_lines(), *time_lines(CARDS[0])):
        assert line in readme, line


def test_the_sizes_that_they_start_from_are_those_that_the_models_are_known_by():
    qwen, llama = MODELS
    assert (round(qwen.weights / 1e9, 2), round(qwen.linear / 1e9, 2)) == (8.19, 6.95)
    assert round(llama.weights / 1e9, 2) == 8.03
    assert (qwen.kv_bytes, llama.kv_bytes) == (147_456, 131_072)
