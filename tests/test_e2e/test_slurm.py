"""The rendered Slurm chain, run by a real Slurm of one node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import main
from pipeline.runfile import read_run
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
        _until_in(log, "rollout")
        subprocess.run(["scancel", "--batch", "--signal=TERM", number], env=environment, check=True)
        assert finished(environment, [number], 600) == {number: "COMPLETED"}, log.read_text()
        assert "interrupted" in log.read_text()
        assert "Iteration 0 is done" in log.read_text()
    assert len(read_run(tmp_path / "run").policies) == 2


def _until_in(file: Path, word: str) -> None:
    import time

    deadline = time.monotonic() + 120
    while not (file.is_file() and word in file.read_text()):
        assert time.monotonic() < deadline, list(file.parent.iterdir())
        time.sleep(0.1)
