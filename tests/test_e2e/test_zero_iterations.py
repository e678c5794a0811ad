"""Runs that train nothing, and runs that score the dev split seldom."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.store import Store
from tests.test_e2e.kit import RECIPE, mmgrpo, own_recipe, run, state

WITH_TEST = RECIPE.replace('inputs = ["word"]', 'inputs = ["word"]\ntest = "test"')
EXAMPLES = "word,split\n" + "".join(f"w{i},{['train', 'dev', 'test'][i % 3]}\n" for i in range(15))


def scores(folder: Path) -> list[str]:
    return [path.name for stage, path in Store(folder / "artifacts").all() if stage == "evaluate"]


def test_a_run_of_no_iterations_scores_the_base_and_opens_the_test_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = own_recipe(tmp_path / "a", recipe=WITH_TEST, examples=EXAMPLES)
    assert run(recipe, tmp_path / "run", "--set", "run.iterations=0") == 0
    assert state(tmp_path / "run").iterations == ()
    assert len(state(tmp_path / "run").evaluations["dev"]) == 1
    none = ("--run-dir", tmp_path / "run", "--exec", "progress=off", "--set", "run.iterations=0")
    assert mmgrpo("evaluate", recipe, "--test", *none) == 0
    assert "test score before training" in capsys.readouterr().out
    assert state(tmp_path / "run").tests_opened == 1
    assert mmgrpo("report", tmp_path / "run") == 0
    assert mmgrpo("verify", tmp_path / "run") == 0


def test_the_test_split_of_a_run_that_is_to_train_stays_shut_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = own_recipe(tmp_path / "a", recipe=WITH_TEST, examples=EXAMPLES)
    assert mmgrpo("evaluate", recipe, "--test", "--run-dir", tmp_path / "run") == 3
    assert "nothing is trained yet" in capsys.readouterr().err


def test_dev_is_scored_at_the_start_at_the_end_and_every_so_often_between(tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path / "a", recipe=WITH_TEST, examples=EXAMPLES)
    options = ("--set", "run.iterations=3", "--set", "run.evaluate_every=2")
    assert run(recipe, tmp_path / "run", *options) == 0
    run_file = state(tmp_path / "run")
    assert set(run_file.evaluations["dev"]) == {run_file.policies[place] for place in (0, 2, 3)}
    assert run(recipe, tmp_path / "run", "--set", "run.iterations=3", "--set", "run.evaluate_every=1") == 0
    assert len(scores(tmp_path / "run")) == 4


def test_a_run_that_never_scores_dev_still_opens_its_test_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = own_recipe(tmp_path / "a", recipe=WITH_TEST, examples=EXAMPLES)
    never = ("--set", "run.evaluate_every=0")
    assert run(recipe, tmp_path / "run", *never) == 0
    assert state(tmp_path / "run").evaluations == {}
    assert mmgrpo("evaluate", recipe, "--test", "--run-dir", tmp_path / "run", "--exec", "progress=off", *never) == 0
    assert "test score" in capsys.readouterr().out
    run_file = state(tmp_path / "run")
    assert set(run_file.evaluations) == {"test"}
    assert set(run_file.evaluations["test"]) == {run_file.policies[0], run_file.policies[-1]}
    assert mmgrpo("report", tmp_path / "run") == 0
    assert mmgrpo("verify", tmp_path / "run") == 0


def test_runs_of_several_seeds_share_evaluations_that_have_a_seed_of_their_own(tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path / "a", recipe=WITH_TEST, examples=EXAMPLES)
    for seed in (0, 1):
        own = ("--set", f"seed={seed}", "--set", "run.iterations=0")
        assert run(recipe, tmp_path / "run", *own) == 0
        assert run(recipe, tmp_path / "shared", *own, "--set", "evaluate.seed=0") == 0
    assert len(scores(tmp_path / "run")) == 2
    assert len(scores(tmp_path / "shared")) == 1
    assert set(scores(tmp_path / "shared")) <= set(scores(tmp_path / "run"))
