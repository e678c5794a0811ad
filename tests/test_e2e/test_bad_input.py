"""Every kind of bad input gets its exit code and a message that says what, where, and what to do; nothing is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from pipeline.progress import Reporter
from pipeline.recipes import load_recipe
from pipeline.run import open_run
from pipeline.store import Store
from schemas.errors import DataError, StageError
from schemas.execution import Execution
from stages.engines.models import check_adapter, resolve_base
from tests.test_e2e.kit import EXAMPLES, PROGRAM, RECIPE, TINY, artifact, keys, mmgrpo, own_recipe, run, state

GOOD_METRIC = "return sum(c.islower() for c in output) / len(output)"


def fails(recipe: Path, folder: Path, code: int, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The message of a run that must fail with an exit code, and without a traceback."""
    capsys.readouterr()
    assert run(recipe, folder, *options) == code
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return message


def test_an_unknown_recipe_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a", recipe=RECIPE.replace("learning_rate", "learn_rate"))
    assert "train.learn_rate: unknown key" in fails(recipe, tmp_path / "run", 2, capsys)
    assert not (tmp_path / "run").exists()


def test_a_missing_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a")
    message = fails(recipe, tmp_path / "run", 2, capsys, "--set", "program.factory=no_such_module:program")
    assert "no_such_module" in message
    module = next(recipe.parent.glob("*.py")).stem
    message = fails(recipe, tmp_path / "run", 2, capsys, "--set", f"program.factory={module}:nothing")
    assert "nothing" in message
    assert module in message


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["train.loss=dapo", "train.balance=module"], "train.balance"),
        (["train.balance=token", "train.ratio_level=sequence"], "train.ratio_level"),
        (["group.unit=trajectory", "group.credit={write={reward=1.0}}"], "group.credit"),
    ],
)
def test_what_no_stage_can_do_is_refused_before_anything_is_paid_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: list[str], named: str
) -> None:
    recipe = own_recipe(tmp_path / "a")
    options = [option for setting in settings for option in ("--set", setting)]
    assert named in fails(recipe, tmp_path / "run", 2, capsys, *options)
    assert not list((tmp_path / "run" / "artifacts").glob("rollout/*"))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise ValueError('no answer key')", "no answer key"),
        ("return float('nan')", "nan"),
        ("return 'good'", "str"),
        ("return {'quality': 1.0}", "score"),
        ("return None", "None"),
    ],
)
def test_a_metric_that_never_works_stops_the_run_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, expected: str
) -> None:
    recipe = own_recipe(tmp_path / "a", program=PROGRAM.replace(GOOD_METRIC, body))
    assert expected in fails(recipe, tmp_path / "run", 4, capsys)


def test_a_metric_that_fails_now_and_then_is_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    body = f"assert '0' not in example.inputs['word'], 'zero'\n    {GOOD_METRIC}"
    recipe = own_recipe(tmp_path / "a", program=PROGRAM.replace(GOOD_METRIC, body))
    assert run(recipe, tmp_path / "run", "--set", "rollout.examples=6") == 0
    statuses = artifact(tmp_path / "run", "rollout").manifest.metrics["statuses"]
    assert 0 < statuses["metric_error"] <= 4
    assert sum(statuses.values()) == 24


def test_an_empty_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a", examples=EXAMPLES.replace("dev", "validation"))
    message = fails(recipe, tmp_path / "run", 3, capsys)
    assert "split 'dev', which has no rows" in message
    assert "validation (4)" in message


def test_duplicated_examples_are_refused_with_their_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a", examples=EXAMPLES + "w1,dev\nw2,train\n")
    message = fails(recipe, tmp_path / "run", 3, capsys)
    assert "2 rows, for example row 10 (dev) repeats row 1 (train)" in message


def test_a_missing_column_is_named_with_those_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = own_recipe(tmp_path / "a", examples=EXAMPLES.replace("word", "term"))
    message = fails(recipe, tmp_path / "run", 2, capsys)
    assert "no column word" in message
    assert "term, split" in message


@pytest.mark.parametrize("name", ["schemas.py", "stages/__init__.py", "pipeline.py"])
def test_a_folder_that_shadows_our_packages(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    recipe = own_recipe(tmp_path / "a")
    (recipe.parent / name).parent.mkdir(exist_ok=True)
    (recipe.parent / name).write_text("")
    message = fails(recipe, tmp_path / "run", 2, capsys)
    assert name.split("/", maxsplit=1)[0].removesuffix(".py") in message
    assert str(recipe.parent) in message


def test_a_model_folder_without_a_chat_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a")
    shutil.copytree(resolve_base("tiny-random", tmp_path).path, tmp_path / "a" / "model")
    assert run(recipe, tmp_path / "whole", "--set", "model.base=model", "--iterations", "0") == 0
    for path in (tmp_path / "a" / "model").glob("*.jinja"):
        path.unlink()
    config = tmp_path / "a" / "model" / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"chat_template"', '"other"'))
    message = fails(recipe, tmp_path / "run", 2, capsys, "--set", "model.base=model")
    assert "chat template" in message


def test_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a")
    assert "no-such-model" in fails(recipe, tmp_path / "run", 2, capsys, "--set", "model.base=./no-such-model")


def test_an_adapter_target_that_the_model_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a")
    message = fails(recipe, tmp_path / "run", 2, capsys, "--set", "adapter.targets=['q_proj','query']")
    assert "no linear layer query" in message
    assert "q_proj" in message


def test_an_adapter_of_another_base(tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path / "a")
    assert run(recipe, tmp_path / "run") == 0
    adapter = artifact(tmp_path / "run", "train").file("adapter")
    check_adapter(adapter, resolve_base("tiny-random", tmp_path))
    with pytest.raises(DataError, match="base"):
        check_adapter(adapter, resolve_base("tiny-random:7", tmp_path))


def test_a_truncated_parquet_file_between_two_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a")
    folder = tmp_path / "run"
    options = ("--run-dir", folder, "--exec", "progress=off")
    assert mmgrpo("stage", "rollout", recipe, *options) == 0
    path = artifact(folder, "rollout").file("invocations.parquet")
    path.write_bytes(path.read_bytes()[:-100])
    capsys.readouterr()
    assert mmgrpo("stage", "group", recipe, *options) == 3
    assert str(path) in capsys.readouterr().err
    assert not Store(folder / "artifacts").all()[-1][0].startswith("group")


def test_a_truncated_examples_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a")
    (recipe.parent / "examples.parquet").write_bytes(b"PAR1 and no more")
    message = fails(recipe, tmp_path / "run", 3, capsys, "--set", "examples.path=examples.parquet")
    assert "examples.parquet" in message


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.root
def test_a_full_disk_loses_nothing_and_the_same_command_goes_on(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = own_recipe(tmp_path / "a")
    folder = small_disk / "run"
    assert run(recipe, folder, "--iterations", "0") == 0
    before = keys(folder)
    (small_disk / "filler").write_bytes(
        b"0" * (os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize - 8192)
    )
    message = fails(recipe, folder, 4, capsys)
    assert str(folder) in message
    assert "run the same command again" in message
    assert keys(folder)["setup"] == before["setup"]
    assert mmgrpo("verify", folder) == 0
    (small_disk / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    assert run(recipe, folder) == 0
    assert mmgrpo("verify", folder) == 0


@pytest.mark.root
def test_a_library_that_meets_a_full_disk_in_its_own_words_is_no_defect(small_disk: Path) -> None:
    loaded, folder = load_recipe(TINY, []), small_disk / "run"
    with (
        pytest.raises(StageError, match="No space left on device") as caught,
        open_run(loaded, Execution(), folder, Reporter("off")),
    ):
        save_file({"weights": torch.zeros(2**18)}, folder / "a.safetensors")
    assert isinstance(caught.value.__cause__, SafetensorError)


@pytest.mark.root
def test_a_disk_that_became_read_only_keeps_what_was_finished(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = own_recipe(tmp_path / "a")
    assert run(recipe, small_disk / "run", "--iterations", "0") == 0
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert "cannot write in" in fails(recipe, small_disk / "run", 4, capsys)
    assert mmgrpo("verify", small_disk / "run") == 0


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a")
    (tmp_path / "file").write_text("")
    message = fails(recipe, tmp_path / "file" / "run", 4, capsys)
    assert "cannot write in" in message


def test_a_run_folder_of_another_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a")
    assert run(recipe, tmp_path / "run", "--iterations", "0") == 0
    message = fails(recipe, tmp_path / "run", 3, capsys, "--set", "name=other")
    assert "holds the run of recipe 'own'" in message


@pytest.mark.parametrize("command", ["verify", "lineage", "report"])
def test_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert mmgrpo(command, tmp_path) == 3
    assert "run.json: no such file" in capsys.readouterr().err


def test_wrong_usage_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["nonsense"], ["stage", "nonsense", "x"], ["run"], ["run", "x", "--iterations", "-1"]):
        with pytest.raises(SystemExit) as caught:
            mmgrpo(*arguments)
        assert caught.value.code == 2


def test_state_is_untouched_by_a_run_that_fails_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a")
    assert run(recipe, tmp_path / "run") == 0
    before = state(tmp_path / "run")
    fails(recipe, tmp_path / "run", 2, capsys, "--set", "model.base=./gone")
    assert state(tmp_path / "run") == before


def test_more_examples_than_the_split_has_are_refused_before_anything_is_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = own_recipe(tmp_path / "a")
    message = fails(recipe, tmp_path / "run", 2, capsys, "--set", "rollout.examples=100")
    assert "rollout.examples is 100, but split 'train' has" in message
    assert not (tmp_path / "run" / "artifacts" / "evaluate").exists()
