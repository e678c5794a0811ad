"""`mmgrpo next`: one more iteration, whatever was there before."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import main
from pipeline.commands.next import NOTHING_LEFT
from pipeline.locks import hold
from pipeline.runfile import read_run
from tests.test_e2e.kit import ROOT

TINY = ROOT / "data" / "tiny" / "recipe.toml"


def test_next_after_next_leaves_nothing_for_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    codes = [main(["next", str(TINY), "--run-dir", str(run)]) for _ in range(3)]
    assert codes == [0, 0, NOTHING_LEFT]
    before = (run / "run.json").read_bytes()
    capsys.readouterr()
    assert main(["run", str(TINY), "--run-dir", str(run)]) == 0
    assert "up to date; nothing was run" in capsys.readouterr().out
    assert (run / "run.json").read_bytes() == before
    assert len(read_run(run).policies) == 3
    assert main(["next", str(TINY), "--run-dir", str(run), "--set", "rollout.rollouts=5"]) == 0
    assert (
        "No part of the run any more: 2 iterations that it had trained, from iteration 0 on" in capsys.readouterr().out
    )


def test_an_iteration_is_done_when_its_policy_is_scored(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for stage in ("base", "rollout", "group", "logprobs", "train"):
        assert main(["stage", stage, str(TINY), "--run-dir", str(run)]) == 0
    assert main(["next", str(TINY), "--run-dir", str(run)]) == 0
    found = read_run(run)
    assert len(found.policies) == 2
    assert set(found.evaluations["dev"]) == set(found.policies)


def test_two_schedulers_make_one_iteration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with hold(run / ".lock", "run"):
        assert main(["next", str(TINY), "--run-dir", str(run)]) == 75
    assert "in use by another process" in capsys.readouterr().err
    assert not (run / "run.json").exists()


def test_a_command_that_is_terminated_says_so_and_goes_on_where_it_was(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "pipeline.cli",
        "next",
        str(TINY),
        "--run-dir",
        str(run),
        "--exec",
        "progress=plain",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stderr
    for line in process.stderr:
        if "rollout" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, told
    assert "interrupted; what was committed is kept" in told
    assert main(["next", str(TINY), "--run-dir", str(run)]) == 0
    assert json.loads((run / "report.json").read_text())
