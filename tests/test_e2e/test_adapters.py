"""A run with an adapter for each module, killed with SIGKILL between the two, as a user would see it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from schemas.parquet import read_frame
from schemas.rollouts import INVOCATIONS
from stages.contract import Artifact
from tests.test_e2e.kit import ROOT, TINY, artifact, mmgrpo, state

TRAIN = ("--set", "adapter.modules.plan=writer", "--set", "adapter.modules.step=worker", "--exec", "progress=off")
KILLER = """
import os, signal, sys
from stages.training import turns
original = turns._fit
def fit(job, draft, out, world):
    if job.adapter == "writer":
        os.kill(os.getpid(), signal.SIGKILL)
    return original(job, draft, out, world)
turns._fit = fit
from pipeline.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""The command line, in a process that is killed when the second adapter of a stage is about to be trained."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two iterations: killed once, with the first adapter done and the second not, and started again."""
    folder = tmp_path_factory.mktemp("adapters") / "run"
    command = [sys.executable, "-c", KILLER, "run", str(TINY), "--run-dir", str(folder), *TRAIN]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    turns = next((folder / "artifacts" / "train").glob("*.partial")) / ".scratch" / "turns"
    assert (turns / "worker" / "done" / "adapter").is_dir()
    assert not (turns / "writer" / "done").exists()
    assert mmgrpo("run", TINY, "--run-dir", folder, *TRAIN) == 0
    return folder


def test_it_verifies_and_equals_an_undisturbed_run_from_the_same_rollouts(killed: Path, tmp_path: Path) -> None:
    assert mmgrpo("verify", killed) == 0
    assert len(state(killed).iterations) == 2
    quiet = tmp_path / "run"
    shutil.copytree(killed / "artifacts" / "rollout", quiet / "artifacts" / "rollout")
    assert mmgrpo("run", TINY, "--run-dir", quiet, *TRAIN) == 0
    assert state(quiet).policies == state(killed).policies
    for iteration in range(2):
        assert artifact(quiet, "train", iteration).digest == artifact(killed, "train", iteration).digest


def test_each_module_is_sampled_from_its_own_adapter(killed: Path) -> None:
    calls = read_frame(artifact(killed, "rollout", 1).file("invocations.parquet"), INVOCATIONS)
    served = dict(calls.select("module", "adapter").unique().iter_rows())
    policies = pl.read_parquet(artifact(killed, "train", 0).file("policies.parquet")).sort("iteration")
    assert served == json.loads(policies["adapters"][1])
    assert len(set(served.values())) == 2


def test_lineage_says_which_rollouts_trained_which_adapter(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert mmgrpo("lineage", killed, "--json") == 0
    chain = json.loads(capsys.readouterr().out)
    assert [(row["iteration"], Path(row["adapter"]).name, row["modules"]) for row in chain] == [
        (0, "worker", "step"),
        (0, "writer", "plan"),
        (1, "worker", "step"),
        (1, "writer", "plan"),
    ]
    assert len({row["adapter_digest"] for row in chain}) == 4
    assert mmgrpo("lineage", killed, "--policy", state(killed).policies[2], "--json") == 0
    rows = pl.DataFrame(json.loads(capsys.readouterr().out))
    for row in chain:
        mine = rows.filter(iteration=row["iteration"], adapter=Path(row["adapter"]).name)
        assert mine["members"].sum() == row["members"] > 0
        groups = pl.read_parquet(artifact(killed, "group", row["iteration"]).file("groups.parquet"))
        expected = groups.filter(pl.col("module") == row["modules"])["rollout_id"].unique().sort().to_list()
        assert mine["rollout_id"].sort().to_list() == expected
    fate_of = rows.filter(adapter="writer", iteration=0)["rollout_id"][0]
    assert mmgrpo("lineage", killed, "--rollout", fate_of, "--json") == 0
    members = json.loads(capsys.readouterr().out)["members"]
    assert {(member["module"], member["adapter"]) for member in members} <= {("plan", "writer"), ("step", "worker")}


def test_verify_names_the_adapter_of_a_flipped_byte(
    killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(killed, copy)
    file = artifact(copy, "train", 1).file("adapters") / "writer" / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    capsys.readouterr()
    assert mmgrpo("verify", copy) == 3
    told = capsys.readouterr().err
    assert str(file) in told
    assert "the digest of the adapter of 'plan'" in told


def test_verify_names_an_adapter_that_changed_without_a_step(killed: Path) -> None:
    from pipeline.audit.policies import adapter_problems

    whole = artifact(killed, "train", 1)
    assert list(adapter_problems(whole)) == []
    metrics = json.loads(json.dumps(whole.manifest.metrics))
    metrics["adapters"]["writer"]["steps"] = 0
    told = Artifact(whole.path, whole.manifest.model_copy(update={"metrics": metrics}))
    (problem,) = adapter_problems(told)
    assert "the adapter 'writer' of plan took no step, but is another than before" in problem


def test_the_report_shows_the_steps_of_each_adapter(killed: Path) -> None:
    numbers = json.loads((killed / "report.json").read_text())
    assert {step["adapter"] for step in numbers["steps"]} == {"worker", "writer"}
    assert {(row["iteration"], row["adapter"]) for row in numbers["step_means"]} == {
        (iteration, name) for iteration in range(2) for name in ("worker", "writer")
    }
    assert '<th scope="col" class="text">Adapter</th>' in (killed / "report.html").read_text()


def test_a_table_with_a_module_that_the_program_lacks_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--set", "adapter.modules.plan=a", "--set", "adapter.modules.stpe=b")
    assert mmgrpo("run", TINY, "--run-dir", tmp_path / "run", *arguments) == 2
    assert (
        "adapter.modules names 'stpe', which is no module of the program; it has plan, step" in capsys.readouterr().err
    )
