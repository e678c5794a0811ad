"""All groups flat, every rollout failed, a module never called: the run says so and does as the recipe states."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_e2e.kit import PROGRAM, RECIPE, artifact, mmgrpo, own_recipe, state

GOOD_METRIC = "return sum(c.islower() for c in output) / len(output)"
TWO = RECIPE + "[run]\niterations = 2\n"
STOP = TWO + 'when_nothing_to_train = "stop"\n'
# 0 is also what a completion cut at the limit gets, so every reward is the same.
FLAT = PROGRAM.replace(GOOD_METRIC, "return 0.0").replace("if not any(c.isalpha() for c in text)", "if False")
FAILING = PROGRAM.replace("if not any(c.isalpha() for c in text)", "if True")
CRASHING = PROGRAM.replace('return call("write"', 'raise RuntimeError("no route"); return call("write"')


@pytest.mark.parametrize("program", [FLAT, FAILING, CRASHING], ids=["all flat", "all fail to parse", "all crash"])
def test_the_run_goes_on_with_the_same_policy_when_nothing_can_be_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], program: str
) -> None:
    recipe = own_recipe(tmp_path / "a", program=program, recipe=TWO)
    assert mmgrpo("run", recipe, "--run-dir", tmp_path / "run", "--exec", "progress=plain") == 0
    assert len(set(state(tmp_path / "run").policies)) == 1
    assert len(state(tmp_path / "run").iterations) == 2
    metrics = artifact(tmp_path / "run", "train").manifest.metrics
    assert metrics["trained"] is False
    assert metrics["reason"] in capsys.readouterr().err
    assert "adapter/adapter_model.safetensors" not in artifact(tmp_path / "run", "train").manifest.files
    assert mmgrpo("verify", tmp_path / "run") == 0


def test_the_run_stops_there_when_the_recipe_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a", program=FLAT, recipe=STOP)
    assert mmgrpo("run", recipe, "--run-dir", tmp_path / "run", "--exec", "progress=plain") == 0
    assert "ended early" in capsys.readouterr().err
    assert len(state(tmp_path / "run").iterations) == 1
    assert state(tmp_path / "run").ended is not None


def test_a_module_that_is_never_called_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = PROGRAM.replace("    return run\n", '    run.modules = ("write", "review")\n    return run\n')
    recipe = own_recipe(tmp_path / "a", program=program)
    assert mmgrpo("run", recipe, "--run-dir", tmp_path / "run", "--exec", "progress=plain") == 0
    assert artifact(tmp_path / "run", "rollout").manifest.metrics["modules_never_called"] == ["review"]
    assert "review" in capsys.readouterr().err
    assert artifact(tmp_path / "run", "train").manifest.metrics["trained"] is True


@pytest.mark.parametrize(("program", "error"), [(CRASHING, "RuntimeError: no route"), (FAILING, "ParseError")])
def test_a_run_in_which_everything_fails_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], program: str, error: str
) -> None:
    recipe = own_recipe(tmp_path / "a", program=program)
    assert mmgrpo("run", recipe, "--run-dir", tmp_path / "run", "--exec", "progress=plain") == 0
    printed = capsys.readouterr().err
    assert "failed: 16 " in printed
    assert error in printed
