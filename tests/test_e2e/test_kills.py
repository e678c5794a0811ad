"""A run killed with SIGKILL at many points of every stage ends like one that nobody disturbed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.test_e2e.kit import ROOT, TINY, artifact, mmgrpo, state

KILLS = 4
"""Times that each job of an iteration is killed; a kill too late for what is left of a job hits between two jobs."""


def killed_run(folder: Path, log: Path, kills: int) -> subprocess.CompletedProcess[str]:
    """Run tiny in one process after another, each killed at a later event, until it is done."""
    command = [sys.executable, "-m", "tests.test_e2e.faults", str(TINY), str(folder), str(log), str(kills)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=1200)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("killed")
    done = killed_run(folder / "run", folder / "log", KILLS)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "run", folder / "log"


def test_the_killed_run_verifies_and_left_nothing_half_done(killed: tuple[Path, Path]) -> None:
    folder, _ = killed
    assert mmgrpo("verify", folder) == 0
    assert len(state(folder).iterations) == 2
    assert not list((folder / "artifacts").rglob("*.partial"))


def test_every_stage_was_hit_many_times(killed: tuple[Path, Path]) -> None:
    _, log = killed
    hits = Counter(line.split()[1] for line in log.read_text().splitlines() if line.startswith("kill "))
    for stage in ("rollout", "group", "logprobs", "train", "evaluate"):
        assert hits[stage] >= KILLS, hits


def test_no_committed_shard_was_made_twice(killed: tuple[Path, Path]) -> None:
    _, log = killed
    commits = [line.split()[1:] for line in log.read_text().splitlines() if line.startswith("commit ")]
    shards = Counter((key, name) for key, name in commits)
    assert len(shards) == 16
    assert set(shards.values()) == {1}


def test_groups_batch_plan_and_adapter_equal_those_of_an_undisturbed_run_from_the_same_rollouts(
    killed: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, _ = killed
    quiet = tmp_path / "run"
    shutil.copytree(folder / "artifacts" / "rollout", quiet / "artifacts" / "rollout")
    assert mmgrpo("run", TINY, "--run-dir", quiet, "--exec", "progress=off") == 0
    for iteration in range(2):
        assert artifact(quiet, "rollout", iteration).path.name == artifact(folder, "rollout", iteration).path.name
        assert artifact(quiet, "group", iteration).digest == artifact(folder, "group", iteration).digest
        mine = artifact(quiet, "train", iteration).manifest.files
        theirs = artifact(folder, "train", iteration).manifest.files
        for name in ("batch_plan.parquet", "adapter/adapter_model.safetensors", "optimizer.safetensors"):
            assert mine[name].sha256 == theirs[name].sha256, (iteration, name)
    assert state(quiet).policies == state(folder).policies
