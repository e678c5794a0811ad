"""The train stage killed with SIGKILL again and again ends with the bytes of an undisturbed run."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.test_e2e.kit import ROOT
from tests.test_stages.train_faults import KILLS, SETTINGS


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("kills")
    command = [sys.executable, "-m", "tests.test_stages.train_faults", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("setting", SETTINGS)
def test_adapter_optimizer_state_and_steps_are_those_of_an_undisturbed_run(found: dict[str, Any], setting: str) -> None:
    here = found[setting]
    assert [what for what, _ in here["log"]] == [what for what, _ in KILLS]
    for name in ("adapter/adapter_model.safetensors", "optimizer.safetensors", "steps.parquet"):
        assert f"files/{name}" in here["files"]
    assert here["differ"] == []


def test_the_kills_hit_both_epochs(found: dict[str, Any]) -> None:
    for here in found.values():
        steps = [done for _, done in here["log"]]
        assert min(steps) == 0
        assert max(steps) > 3, "the first epoch has three steps"
