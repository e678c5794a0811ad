"""The short form of the chaos suite: a fault of nearly every family, and the run ends as if there had been none."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import pytest

from tests.chaos.inputs import settings
from tests.chaos.soak import Plan
from tests.chaos.suite import FAMILIES, LONG, LONG_ALONE
from tests.test_e2e.kit import ROOT


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the last line of the short form says."""
    command = [sys.executable, "-m", "tests.chaos.suite", str(tmp_path_factory.mktemp("chaos")), "--short"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=1800)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_fault_of_every_family_but_those_of_the_long_form_alone_loses_and_doubles_nothing(
    short: dict[str, object],
) -> None:
    assert set(short["families"]) == set(FAMILIES) - LONG_ALONE
    assert {"object store", "ray"} == LONG_ALONE
    for name, family in short["families"].items():
        if os.geteuid() == 0 or name not in {"full disk", "read-only"}:
            assert family["injected"] > 0, name
        assert family["recovered"] == family["injected"], name
    assert (short["lost_rows"], short["doubled_rows"], short["wrong"]) == (0, 0, 0)


def test_the_long_form_has_two_thousand_faults_of_every_family() -> None:
    assert LONG.keys() == FAMILIES.keys()
    assert sum(LONG.values()) >= 2000


def test_plans_are_repeated_by_their_seed_alone() -> None:
    assert [Plan.drawn(3, number) for number in range(20)] == [Plan.drawn(3, number) for number in range(20)]
    assert settings(random.Random(5), 50) == settings(random.Random(5), 50)
    assert settings(random.Random(5), 50) != settings(random.Random(6), 50)


def test_the_figures_in_the_readme_are_those_of_the_result() -> None:
    from tests.chaos.summary import in_readme

    readme = (ROOT / "README.md").read_text()
    result = json.loads((ROOT / "data" / "baselines" / "chaos.json").read_text())
    assert in_readme(readme, result) == readme
    assert result["suite"]["injected"] >= 2000
    assert result["suite"]["lost_rows"] == result["suite"]["doubled_rows"] == result["suite"]["wrong"] == 0
    assert result["soak"]["minutes"] >= 60
    assert result["soak"]["equal"]
    assert result["soak"]["verify_deep"] == 0
    assert result["kinds"]["kinds"] >= 300
