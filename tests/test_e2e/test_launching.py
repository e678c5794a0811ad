"""The train stage that starts its processes itself: killed in every way, on two nodes, sharded by a file."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pipeline.launching.description import LINK
from pipeline.partial import BEAT_S
from schemas.telemetry import read_attempts
from tests.test_e2e.kit import ROOT, TINY, artifact, mmgrpo
from tests.test_e2e.test_processes import TORCHRUN, launch

pytestmark = pytest.mark.slow  # two minutes of CPU each
STEPS = ["--set", "train.epochs=8", "--set", "train.examples_per_step=1", "--set", "adapter.dropout=0.1"]
MANY = [str(TINY), *STEPS, "--exec", "progress=off", "--run-dir"]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is ready to train for many steps."""
    folder = tmp_path_factory.mktemp("launching") / "run"
    for stage in ("base", "rollout", "group", "logprobs"):
        assert mmgrpo("stage", stage, *MANY, folder) == 0
    return folder


@pytest.fixture(scope="module")
def manual(ready: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of what two processes make that torchrun started by hand."""
    folder = tmp_path_factory.mktemp("manual") / "run"
    shutil.copytree(ready, folder)
    done = launch(TORCHRUN, "stage", "train", *MANY, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return digests(folder)


def digests(folder: Path) -> dict[str, str]:
    made = artifact(folder, "train", 0).manifest
    assert made.metrics["steps"] > 20
    return {name: entry.sha256 for name, entry in made.files.items() if not name.startswith("telemetry/")}


def begun(folder: Path, *more: str, **settings: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pipeline.cli", "stage", "train", *MANY, str(folder), *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | settings
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)


def below(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def rank(process: subprocess.Popen[str], number: int) -> psutil.Process:
    found = [each for each in below(process) if each.environ().get("RANK") == str(number)]
    assert len(found) == 1
    return found[0]


def disturbed(folder: Path, disturb: Callable[[subprocess.Popen[str]], None]) -> tuple[int, str]:
    """Train until there are two more steps, then disturb it. Nothing of it may be left."""
    before = taken(folder)
    process = begun(folder, "--exec", "train.processes=2")
    deadline = time.monotonic() + 600
    while taken(folder) < before + 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    all_of_it = below(process)
    assert len(all_of_it) >= 3
    (place,) = {
        Path(path)
        for each in all_of_it
        for path in each.cmdline()
        if "/mmgrpo-train-" in path and LINK in {item.name for item in Path(path).glob("*")}
    }
    disturb(process)
    _, told = process.communicate(timeout=300)
    _, alive = psutil.wait_procs(all_of_it, timeout=60)
    assert not alive
    assert not place.exists()
    assert not artifact_made(folder)
    return process.returncode, told


def artifact_made(folder: Path) -> bool:
    return bool(list((folder / "artifacts" / "train").glob("*/manifest.json")))


def taken(folder: Path) -> int:
    """Steps of the last checkpoint."""
    found = list((folder / "artifacts" / "train").glob(".*.partial/.scratch/turns/*/checkpoint-*"))
    return max((int(path.name.removeprefix("checkpoint-")) for path in found), default=0)


def killed_while_a_step_takes_long(process: subprocess.Popen[str]) -> None:
    """What it takes is noted meanwhile."""
    (partial,) = Path(process.args[-3]).glob("artifacts/train/.*.partial")
    rank(process, 0).suspend()
    before = read_attempts(partial)[-1].seconds
    time.sleep(BEAT_S + 2)
    assert read_attempts(partial)[-1].seconds >= before + BEAT_S
    process.kill()
    rank(process, 0).resume()


def test_killed_in_every_way_it_ends_with_the_bytes_of_an_undisturbed_launch_by_hand(
    ready: Path, manual: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(ready, folder)
    code, told = disturbed(folder, lambda process: rank(process, 1).kill())
    assert code == 4
    assert "process 1 of the 2 that train was ended by SIGKILL" in told
    assert "same command goes on from the last checkpoint" in told
    assert "Traceback" not in told.partition("Its last lines")[0]
    code, told = disturbed(folder, lambda process: process.terminate())
    assert (code, "interrupted" in told) == (143, True)
    code, told = disturbed(folder, lambda process: process.send_signal(signal.SIGINT))
    assert (code, "interrupted" in told) == (130, True)
    code, _ = disturbed(folder, killed_while_a_step_takes_long)
    assert code == -signal.SIGKILL
    process = begun(folder, "--exec", "train.processes=2")
    _, told = process.communicate(timeout=600)
    assert process.returncode == 0, told
    assert digests(folder) == manual
    attempts = read_attempts(artifact(folder, "train", 0).path)
    assert [attempt.finished for attempt in attempts] == [False] * 4 + [True]
    assert all(attempt.core_seconds for attempt in attempts)
    assert mmgrpo("verify", folder) == 0


def test_two_nodes_that_meet_make_the_same_bytes(ready: Path, manual: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(ready, folder)
    nodes = ["--exec", "train.nodes=2"]
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29633"}
    second = begun(folder, *nodes, SLURM_NODEID="1", **meet)
    first = begun(folder, *nodes, "--exec", "train.node_rank=0", **meet)
    for process in (first, second):
        _, told = process.communicate(timeout=900)
        assert process.returncode == 0, told
    assert digests(folder) == manual
    (attempt,) = read_attempts(artifact(folder, "train", 0).path)
    assert attempt.core_seconds is None, "each node knows its own time alone"
    late = begun(folder, *nodes, "--exec", "train.node_rank=1", **meet)
    told, _ = late.communicate(timeout=300)
    assert (late.returncode, "this node was not needed" in told) == (0, True)


def test_a_file_of_accelerate_shards_the_base(ready: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(ready, folder)
    file = tmp_path / "fsdp.yaml"
    file.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 2\nnum_machines: 1\n"
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    )
    process = begun(folder, "--exec", "train.processes=2", "--exec", f"train.config={file}")
    _, told = process.communicate(timeout=600)
    assert process.returncode == 0, told
    assert "sharded over 2 processes" in artifact(folder, "train", 0).manifest.metrics["path"]
    shutil.copytree(ready, tmp_path / "other")
    file.write_text(file.read_text().replace("fsdp_version: 2", "fsdp_version: 1"))
    refused = begun(tmp_path / "other", "--exec", "train.processes=2", "--exec", f"train.config={file}")
    _, told = refused.communicate(timeout=600)
    assert refused.returncode == 2, told
    assert "fsdp_version 2" in told
