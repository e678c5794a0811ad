"""The rendered Slurm chain, run by a real Slurm of one node, and of two for training."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.cli import main
from pipeline.runfile import read_run
from schemas.telemetry import read_attempts
from tests.test_e2e.kit import ROOT
from tests.test_e2e.slurm_kit import finished, missing, slurm

pytestmark = pytest.mark.slow  # a minute or two each
TINY = ROOT / "data" / "tiny" / "recipe.toml"


def cluster_file(folder: Path) -> Path:
    file = folder / "cluster.toml"
    file.write_text(
        f'''project = "{ROOT}"
run_dir = "{folder / "run"}"
command = "{sys.executable} -m pipeline.cli"
environment = {{ PYTHONPATH = "{ROOT}", OMP_NUM_THREADS = "1" }}
secrets = {{ TRACKER_KEY = "{folder / "key"}" }}
[defaults]
cpus = 1
gpus = 0
memory_gib = 2
minutes = 10
'''
    )
    (folder / "key").write_text("a secret\n")
    return file


@pytest.mark.skipif(bool(missing()), reason=f"Slurm is not here: {', '.join(missing())}")
def test_the_chain_that_slurm_runs_is_the_run_of_one_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = tmp_path / "jobs"
    assert main(["render", "slurm", str(TINY), str(jobs), "--cluster", str(cluster_file(tmp_path))]) == 0
    assert "a secret" not in "".join(file.read_text() for file in jobs.iterdir())
    with slurm(tmp_path / "slurm") as environment:
        done = subprocess.run([jobs / "submit.sh"], env=environment, capture_output=True, text=True, check=True)
        numbers = [line.split()[0] for line in done.stdout.splitlines()]
        assert len(numbers) == 13
        states = finished(environment, numbers, 900)
        logs = "".join(file.read_text() for file in (tmp_path / "run" / "slurm").iterdir())
        assert set(states.values()) == {"COMPLETED"}, logs
    capsys.readouterr()
    assert main(["run", str(TINY), "--run-dir", str(tmp_path / "run")]) == 0
    assert "up to date; nothing was run" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "run")]) == 0


@pytest.mark.skipif(bool(missing()), reason=f"Slurm is not here: {', '.join(missing())}")
def test_a_job_that_slurm_ends_goes_on_where_it_was(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    assert main(["render", "slurm", str(TINY), str(jobs), "--cluster", str(cluster_file(tmp_path))]) == 0
    with slurm(tmp_path / "slurm") as environment:
        command = ["sbatch", "--parsable", str(jobs / "next.sbatch")]
        (tmp_path / "run" / "slurm").mkdir(parents=True)
        number = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
        log = tmp_path / "run" / "slurm" / f"tiny-next-{number}.out"
        _until(lambda: log.is_file() and "rollout" in log.read_text(), log)
        subprocess.run(["scancel", "--batch", "--signal=TERM", number], env=environment, check=True)
        assert finished(environment, [number], 600) == {number: "COMPLETED"}, log.read_text()
        assert "interrupted" in log.read_text()
        assert "Iteration 0 is done" in log.read_text()
    assert len(read_run(tmp_path / "run").policies) == 2


@pytest.mark.skipif(bool(missing()), reason=f"Slurm is not here: {', '.join(missing())}")
def test_two_nodes_of_slurm_train_together_and_go_on_when_the_job_was_ended(tmp_path: Path) -> None:
    jobs, file = tmp_path / "jobs", cluster_file(tmp_path)
    file.write_text(f"{file.read_text()}[stages.train]\nnodes = 2\n")
    steps = ["--set", "train.epochs=8", "--set", "train.examples_per_step=1"]
    assert main(["render", "slurm", str(TINY), str(jobs), "--cluster", str(file), *steps]) == 0
    for stage in ("base", "rollout", "group", "logprobs"):
        assert main(["stage", stage, str(TINY), "--run-dir", str(tmp_path / "run"), *steps]) == 0
    with slurm(tmp_path / "slurm", ("zz-second",)) as environment:
        (tmp_path / "run" / "slurm").mkdir()
        command = ["sbatch", "--parsable", str(jobs / "train.sbatch"), "0"]
        number = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
        log = tmp_path / "run" / "slurm" / f"tiny-train-{number}.out"
        scratch = tmp_path / "run" / "artifacts" / "train"
        _until(lambda: bool(list(scratch.glob(".*.partial/.scratch/turns/*/checkpoint-*"))), log)
        subprocess.run(["scancel", "--batch", "--signal=TERM", number], env=environment, check=True)
        assert finished(environment, [number], 900) == {number: "COMPLETED"}, log.read_text()
    attempts = read_attempts(next(scratch.glob("*/manifest.json")).parent)
    assert [attempt.finished for attempt in attempts] == [False, True], log.read_text()
    assert attempts[-1].core_seconds is None, "of two nodes"
    assert main(["verify", str(tmp_path / "run")]) == 0


def _until(happened: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 600
    while not happened():
        assert time.monotonic() < deadline, log.read_text() if log.exists() else list(log.parent.iterdir())
        time.sleep(0.1)
