"""Whole commands that share their work by Ray, as a user types them: the same results, and nothing left behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.store import Store
from schemas.telemetry import read_attempts
from tests.test_e2e.kit import ROOT, TINY, artifact, mmgrpo, run

pytestmark = [pytest.mark.ray, pytest.mark.slow]
BY_RAY = ("--exec", "executor=ray", "--exec", "ray.actors=2", "--exec", "threads=1", "--exec", "ray.cpus=0.5")
MARK = "MMGRPO_TEST_OF"
"""An environment variable that all processes of a command have."""


def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, MARK: str(folder), "PYTHONPATH": str(ROOT)}
    whole = [sys.executable, "-m", "pipeline.cli", *arguments, "--run-dir", str(folder)]
    return subprocess.Popen(whole, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def left(folder: Path) -> Iterator[int]:
    """Processes of a command that still run."""
    mark = f"{MARK}={folder}\0".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "environ").read_bytes():
                yield int(path.name)
        except OSError:
            continue


def none_left(folder: Path, within_s: float = 60.0) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if not list(left(folder)):
            return True
        time.sleep(0.2)
    return False


def digests(folder: Path) -> dict[str, str]:
    return {stage: artifact(folder, stage).digest for stage in ("rollout", "group", "train")}


def test_a_run_by_ray_verifies_and_its_groups_and_adapter_are_those_that_one_process_makes(tmp_path: Path) -> None:
    folder, again = tmp_path / "run", tmp_path / "again"
    job = command(folder, "run", str(TINY), "--iterations", "1", *BY_RAY)
    _, said = job.communicate(timeout=900)
    assert job.returncode == 0, said
    assert none_left(folder)
    assert mmgrpo("verify", folder) == 0
    for stage, spent in (("rollout", True), ("group", True), ("train", True)):
        (attempt,) = read_attempts(artifact(folder, stage).path)
        assert (attempt.core_seconds is not None) == spent

    shutil.copytree(folder, again)
    for stage in ("group", "logprobs", "train", "evaluate", "drift"):
        shutil.rmtree(again / "artifacts" / stage, ignore_errors=True)
    assert run(TINY, again, "--iterations", "1", "--exec", "threads=1") == 0
    assert digests(again) == digests(folder)


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=["killed", "Ctrl-C", "told to end"]
)
def test_a_command_that_ends_in_the_middle_leaves_no_process_and_goes_on_here(tmp_path: Path, how: Any) -> None:
    folder = tmp_path / "run"
    job = command(folder, "stage", "rollout", str(TINY), *BY_RAY, "--exec", "ray.examples=1")
    while job.poll() is None and not list(folder.glob("artifacts/rollout/.*.partial/rollouts/*")):
        time.sleep(0.05)
    job.send_signal(how)
    _, said = job.communicate(timeout=300)
    assert job.returncode == (-9 if how == signal.SIGKILL else 128 + how), said
    assert none_left(folder)
    if how != signal.SIGKILL:
        assert "interrupted; what was committed is kept" in said
    kept = {path.name: path.read_bytes() for path in folder.glob("artifacts/rollout/.*.partial/rollouts/*")}
    assert kept
    assert mmgrpo("stage", "rollout", TINY, "--run-dir", folder, "--exec", "progress=off") == 0
    (found,) = (path for stage, path in Store(folder / "artifacts").all() if stage == "rollout")
    assert (found / "rollouts.parquet").exists()
    assert mmgrpo("verify", folder) == 0


def test_the_command_that_the_readme_shows_is_one(tmp_path: Path) -> None:
    block = next(
        b for b in re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL) if "ray.gpus" in b
    )
    first, second = block.strip().splitlines()
    assert first.split("#")[0].split() == ["mmgrpo", "run", "data/tiny/recipe.toml", "--exec", "executor=ray"]
    settings = [word for word in second.split() if "=" in word]
    assert mmgrpo("doctor", *(part for word in settings for part in ("--exec", word))) in (0, 4)
