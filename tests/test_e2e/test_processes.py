"""The train stage as several processes, started by itself, `torchrun` or `accelerate launch`, equals one process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from pipeline.recipes import load_recipe
from schemas.errors import RecipeError
from schemas.telemetry import read_attempts
from stages.engines.models import load_model, resolve_base
from stages.training import adapter
from stages.training.sharding import shard
from stages.training.world import joined
from tests.test_e2e.kit import ROOT, TINY, artifact, mmgrpo

ITSELF = ["-m", "pipeline.cli"]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29617", "-m", "pipeline.cli"]
ACCELERATE = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--main_process_port", "29618"]
SEVERAL_STEPS = ["--set", "train.epochs=2", "--set", "train.examples_per_step=1", "--exec", "train_tokens=40"]


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is ready to train."""
    folder = tmp_path_factory.mktemp("processes") / "run"
    for stage in ("base", "rollout", "group"):
        assert mmgrpo("stage", stage, TINY, "--run-dir", folder, "--exec", "progress=off") == 0
    return folder


FSDP = {  # as `accelerate launch --use_fsdp --fsdp_version 2` sets them; on CPUs it would start one process
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
}


def launch(launcher: list[str], *arguments: object, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | settings
    command = [sys.executable, *launcher, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)


def trained(folder: Path) -> tuple[pl.DataFrame, dict[str, torch.Tensor]]:
    found = artifact(folder, "train", 0)
    return pl.read_parquet(found.file("steps.parquet")), load_file(found.file("adapter/adapter_model.safetensors"))


@pytest.mark.parametrize(
    ("launcher", "dropout", "settings"),
    [
        (ITSELF, 0.0, {}),
        pytest.param(TORCHRUN, 0.0, {}, marks=pytest.mark.slow),
        pytest.param(TORCHRUN, 0.2, {}, marks=pytest.mark.slow),
        (TORCHRUN, 0.0, FSDP),
    ],
)
def test_two_processes_take_the_steps_of_one(
    grouped: Path, tmp_path: Path, launcher: list[str], dropout: float, settings: dict[str, str]
) -> None:
    options = [*SEVERAL_STEPS, "--set", f"adapter.dropout={dropout}", "--set", "train.beta=0.1"]
    shutil.copytree(grouped, tmp_path / "one")
    common = [TINY, *options, "--exec", "progress=off", "--run-dir"]
    assert mmgrpo("stage", "logprobs", *common, tmp_path / "one") == 0
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    stage = ["stage", "train", *common]
    assert mmgrpo(*stage, tmp_path / "one") == 0
    own = ["--exec", "train.processes=2"] if launcher is ITSELF else []
    done = launch(launcher, *stage, tmp_path / "two", *own, **settings)
    assert done.returncode == 0, done.stderr[-3000:]
    assert launcher is not ITSELF or "torch.distributed" not in done.stderr
    (one, weights), (two, others) = (trained(tmp_path / name) for name in ("one", "two"))
    assert one.height > 2
    assert one["adapter"].to_list() == two["adapter"].to_list()
    for column in one.drop("adapter").columns:
        assert one[column].to_list() == pytest.approx(two[column].to_list(), rel=1e-5, abs=1e-6), column
    assert weights.keys() == others.keys()
    # Adam divides a gradient by its own size, and with it the rounding of the sum's order: far below a step's size.
    rate = float(one["learning_rate"][0])
    assert max(float((weights[name] - others[name]).abs().max()) for name in weights) < 1e-3 * rate
    assert mmgrpo("verify", tmp_path / "two") == 0
    made = artifact(tmp_path / "two", "train", 0)
    # Who starts them counts them; of processes that a launcher started, each knows its own time alone.
    (attempt,) = read_attempts(made.path)
    assert (attempt.core_seconds is None) == (launcher is TORCHRUN)
    path = made.manifest.metrics["path"]
    assert ("sharded over 2 processes" in path) == bool(settings), path


def test_accelerate_launches_it_too_and_a_second_launch_finds_it_done(grouped: Path, tmp_path: Path) -> None:
    shutil.copytree(grouped, tmp_path / "run")
    common = [TINY, "--exec", "progress=off", "--run-dir", tmp_path / "run"]
    assert mmgrpo("stage", "logprobs", *common) == 0
    stage = ["stage", "train", *common]
    done = launch([*ACCELERATE, "-m", "pipeline.cli"], *stage)
    assert done.returncode == 0, done.stderr[-3000:]
    assert artifact(tmp_path / "run", "train", 0).manifest.metrics["trained"]
    again = launch(TORCHRUN, *stage)
    assert again.returncode == 0, again.stderr[-3000:]
    assert "up to date" in again.stdout


def test_other_commands_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert mmgrpo("run", TINY, "--run-dir", tmp_path / "run") == 2
    assert "launched as 2 processes" in capsys.readouterr().err


@pytest.mark.slow
def test_a_launch_that_cannot_be_followed_ends_in_words_and_trains_nothing(grouped: Path, tmp_path: Path) -> None:
    shutil.copytree(grouped, tmp_path / "run")
    common = [TINY, "--exec", "progress=off", "--run-dir", tmp_path / "run"]
    assert mmgrpo("stage", "logprobs", *common) == 0
    done = launch(TORCHRUN, "stage", "train", *common, **FSDP | {"FSDP_VERSION": "1"})
    assert done.returncode != 0
    assert "launch with --fsdp_version 2" in done.stderr
    assert not list((tmp_path / "run" / "artifacts" / "train").glob("*/manifest.json"))


def test_deepspeed_is_refused_before_processes_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "ACCELERATE_USE_DEEPSPEED": "true"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RecipeError, match="launch with --use_fsdp"), joined():
        pass


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"FSDP_AUTO_WRAP_POLICY": "NO_WRAP"}, "TRANSFORMER_BASED_WRAP"),
        ({"FSDP_TRANSFORMER_CLS_TO_WRAP": "Layer"}, "Layer"),
        ({"FSDP_ACTIVATION_CHECKPOINTING": "true"}, "train_tokens"),
        ({"FSDP_RESHARD_AFTER_FORWARD": "perhaps"}, "FSDP"),
    ],
)
def test_settings_of_fsdp_that_cannot_be_followed_are_refused(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], said: str
) -> None:
    for name, value in (FSDP | changed).items():
        monkeypatch.setenv(name, value)
    model = load_model(resolve_base("tiny-random", ROOT, None), "float32", "cpu").requires_grad_(False)
    attached = adapter.attach(model, load_recipe(TINY, []).recipe.adapter, 0, None)
    with pytest.raises(RecipeError, match=said):
        shard(attached, torch.device("cpu"))
