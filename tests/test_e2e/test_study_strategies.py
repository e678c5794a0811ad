"""The built-in strategies, all in one study of a DSPy program."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.study.runs import plan_runs
from pipeline.study.spec import read_study
from tests.test_e2e.kit import RECIPE, ROOT, own_recipe, state
from tests.test_e2e.test_study import EXAMPLES, made, numbers, study

PROGRAM = """
import dspy
from stages.programs.plain_adapter import PlainAdapter

class Write(dspy.Module):
    def __init__(self):
        super().__init__()
        self.adapter = PlainAdapter()
        self.write = dspy.Predict("word -> text")

    def forward(self, word):
        return self.write(word=word)

def program():
    return Write()

def metric(example, output, calls):
    return sum(c.islower() for c in output.text) / len(output.text)
"""
STUDY = """
name = "five"
seeds = [0]
strategies = ["vanilla", "prompts", "mmgrpo", "prompts+mmgrpo", "rejection", "mmgrpo@unbiased"]
optimizer = "bootstrap"
set = ["run.evaluate_every=9", "rollout.rollouts=3", "evaluate.sampling.temperature=0.9"]
[[tasks]]
name = "one"
recipe = "a/recipe.toml"
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strategies")
    recipe = RECIPE.replace('inputs = ["word"]', 'inputs = ["word"]\ntest = "test"')
    own_recipe(folder / "a", program=PROGRAM, recipe=recipe, examples=EXAMPLES)
    (folder / "study.toml").write_text(STUDY)
    assert study(folder / "study.toml", folder / "out") == 0
    return folder / "out"


def test_every_strategy_is_scored_and_prompts_and_first_rollouts_are_made_once(done: Path) -> None:
    assert {run["strategy"] for run in numbers(done)["runs"]} == {
        "vanilla", "prompts", "mmgrpo", "prompts+mmgrpo", "rejection", "mmgrpo@unbiased",
    }  # fmt: skip
    counts = made(done)
    assert counts["prompts"] == 1
    assert counts["rollout"] == 2  # with the program's own prompts, and with the optimized ones
    assert counts["train"] == 4
    # On dev and test: the base under both prompts, and what each of four trainings gives.
    assert counts["evaluate"] == 2 * (2 + 4)


def test_the_runs_are_what_their_names_say(done: Path) -> None:
    recipes = {
        run["strategy"]: state(done / "runs" / "one" / run["strategy"] / "seed-0") for run in numbers(done)["runs"]
    }
    assert "prompts" in recipes["prompts"].setup
    assert recipes["prompts"].iterations == recipes["vanilla"].iterations == ()
    assert recipes["prompts+mmgrpo"].setup["prompts"] == recipes["prompts"].setup["prompts"]
    assert "prompts" not in recipes["mmgrpo"].setup
    assert recipes["rejection"].recipe["rejection"]["iterations"] == 1
    assert recipes["mmgrpo@unbiased"].recipe["group"]["pad"] == "ragged"
    assert recipes["mmgrpo"].iterations[0]["rollout"] == recipes["rejection"].iterations[0]["rollout"]


def test_what_prompts_cost_is_counted_where_they_are_used(done: Path) -> None:
    costs = {cost["strategy"]: cost for cost in numbers(done)["costs"]}
    assert 0 == costs["vanilla"]["sampled_tokens"] < costs["prompts"]["sampled_tokens"]
    assert costs["prompts+mmgrpo"]["sampled_tokens"] > costs["prompts"]["sampled_tokens"]
    assert costs["prompts"]["trained_tokens"] == 0 < costs["rejection"]["trained_tokens"]


def test_the_study_that_ships_can_be_planned(tmp_path: Path) -> None:
    path = ROOT / "data" / "study" / "study.toml"
    spec = read_study(path)
    runs = plan_runs(spec, path.parent, tmp_path, [])
    assert len(runs) == 5 * 2 * 5
    assert {run.split for run in runs} == {"test"}
    assert all(run.loaded.recipe.evaluate.seed == 0 for run in runs)
    rejection = [run.loaded.recipe for run in runs if run.strategy == "rejection"]
    assert all(recipe.rejection.iterations == recipe.run.iterations for recipe in rejection)
