"""Single jobs: the stages that the whole run shares, and the test split, which is scored only by what was trained."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipeline.store import Store
from tests.test_e2e.kit import EXAMPLES, PROGRAM, RECIPE, artifact, keys, mmgrpo, own_recipe, run, state

WITH_TEST = RECIPE.replace('inputs = ["word"]', 'inputs = ["word"]\ntest = "test"')
TEST_EXAMPLES = EXAMPLES + "t1,test\nt2,test\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe and the folder of its finished run."""
    folder = tmp_path_factory.mktemp("single")
    recipe = own_recipe(folder / "own", recipe=WITH_TEST, examples=TEST_EXAMPLES)
    assert run(recipe, folder / "run") == 0
    return recipe, folder / "run"


@pytest.mark.parametrize("stage", ["examples", "program", "base"])
def test_a_stage_that_the_whole_run_shares_runs_alone(tmp_path: Path, stage: str) -> None:
    recipe = own_recipe(tmp_path / "own")
    assert mmgrpo("stage", stage, recipe, "--run-dir", tmp_path / "run", "--exec", "progress=off") == 0
    assert Store(tmp_path / "run" / "artifacts").all()[-1][0] in {"examples", "program", "base"}
    assert stage in state(tmp_path / "run").setup


@pytest.mark.parametrize(
    ("options", "file", "text"),
    [
        ([], "program", PROGRAM.replace("return sum(", "return 0.5 * sum(")),
        ([], "examples", TEST_EXAMPLES + "t3,test\n"),
        (["--set", "train.learning_rate=0.5"], None, ""),
        (["--set", "model.base=tiny-random:7"], None, ""),
    ],
    ids=["program", "examples", "recipe", "model"],
)
def test_the_test_split_is_not_opened_for_anything_but_what_the_run_was_made_with(
    trained: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    file: str | None,
    text: str,
) -> None:
    recipe, folder = trained
    path = recipe.parent / "examples.csv" if file == "examples" else next(recipe.parent.glob("*.py"))
    before, kept = keys(folder), path.read_text()
    if file:
        path.write_text(text)
    try:
        code = mmgrpo("evaluate", "--test", recipe, "--run-dir", folder, "--exec", "progress=off", *options)
    finally:
        path.write_text(kept)
    assert code == 3
    assert "`mmgrpo plan` says what changed" in capsys.readouterr().err
    assert keys(folder) == before
    assert state(folder).tests_opened == 0


def test_plan_tells_an_artifact_that_is_gone_from_one_never_made(
    tmp_path: Path, trained: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, folder = trained[0], tmp_path / "run"
    shutil.copytree(trained[1], folder)
    shutil.rmtree(artifact(folder, "rollout").path)
    assert mmgrpo("plan", recipe, "--run-dir", folder) == 0
    assert "made before, but its artifact is gone" in capsys.readouterr().out
