"""The comparison of iterations: its variants are recipes, it goes on where it was, keeps its budget, and adds up."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.recipes import load_recipe
from pipeline.reporting.opened import open_run
from tests.benchmarks import iterations
from tests.benchmarks.iterations_table import markdown, summarise
from tests.benchmarks.iterations_units import BASE, Unit, variants
from tests.test_e2e.kit import ROOT

DEMO, TINY = (ROOT / "data" / name / "recipe.toml" for name in ("banking77_8", "tiny"))


@pytest.mark.parametrize("path", [DEMO, TINY])
def test_every_variant_is_a_valid_recipe_that_differs_from_the_base(path: Path) -> None:
    known = variants(load_recipe(path, []).recipe, 20)
    recipes = [load_recipe(path, settings).recipe for settings in known.values()]
    assert len({json.dumps(recipe.model_dump(mode="json")) for recipe in recipes}) == len(known) == 9


def row(variant: str, seed: int, scores: list[float]) -> dict[str, Any]:
    mean = sum(scores) / len(scores)
    costs = {"steps": 20, "rollouts": 40, "sampled_tokens": 100, "trained_row_tokens": 1000, "stage_seconds": 10 * seed}
    first, last = {"estimate": 0.25}, {"estimate": mean}
    return {"variant": variant, "seed": seed, "settings": [], "test_first": first, "test_last": last,
            "test_scores": scores, "wall_seconds": 1.0, "identity": f"{variant} {seed}", **costs}  # fmt: skip


def test_the_summary_pairs_seeds_and_examples() -> None:
    rows = [row(BASE, 0, [0, 0, 1, 1]), row(BASE, 1, [0, 1, 1, 1]), row("two epochs", 1, [1, 1, 1, 1])]
    base, other = summarise(rows, [BASE, "replay", "two epochs"])
    assert base["after"]["estimate"] == 0.625
    assert base["after_by_seed"] == [0.5, 0.75]
    assert base["change"] is None
    assert other["change"]["estimate"] == 0.25
    assert (other["change"]["low"], other["change"]["n"]) == (0.0, 4)
    assert other["changes"] == [0.25]
    assert base["stage_seconds"] == 5
    lines = markdown([base, other]).splitlines()
    assert len(lines) == 4
    assert {line.count("|") for line in lines} == {10}
    assert "+0.250 [+0.000, " in lines[3]
    assert markdown([]) == ""


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What stands in for a run, by variant; a run of its own for each call."""
    what: dict[str, str] = {}

    def start(unit: Unit, machine: Any) -> subprocess.Popen[bytes]:
        unit.folder.mkdir(parents=True, exist_ok=True)
        with (unit.folder / "log.txt").open("ab") as log:
            return subprocess.Popen([sys.executable, "-c", what.get(unit.variant, "")], stderr=log)

    def measure(unit: Unit, wall: float) -> dict[str, Any]:
        return {**row(unit.variant, unit.seed, [0, 1]), "identity": unit.identity}

    monkeypatch.setattr(Unit, "start", start)
    monkeypatch.setattr(Unit, "measure", measure)
    return what


def compare(folder: Path, *options: str) -> int:
    where = ("--recipe", str(TINY), "--base", str(folder / "runs"), "--out", str(folder / "out.json"))
    return iterations.main([*where, "--iterations", "1", "--seeds", "0,1", *options])


def test_what_is_in_the_results_is_not_run_again_and_a_failure_shows_its_log(
    tmp_path: Path, code: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code["replay"] = "raise SystemExit('no memory')"
    assert compare(tmp_path, "--variants", "base;replay", "--jobs", "4") == 1
    printed = capsys.readouterr().out
    assert "no memory" in printed
    assert "missing: replay 0; replay 1" in printed
    assert len(json.loads((tmp_path / "out.json").read_text())["rows"]) == 2
    code["base"] = "raise SystemExit('it was run again')"
    code["replay"] = ""
    assert compare(tmp_path, "--variants", "base;replay") == 0
    assert "all 4 runs are in" in capsys.readouterr().out


def test_past_its_budget_it_stops_what_runs_and_says_what_is_missing(
    tmp_path: Path, code: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code["replay"] = "import time; time.sleep(600)"
    began = time.monotonic()
    assert compare(tmp_path, "--variants", "base;replay", "--jobs", "4", "--budget-seconds", "4") == 0
    assert time.monotonic() - began < 60
    assert "missing: replay 0; replay 1" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "out.json").read_text())["rows"]) == 2


def test_other_iterations_are_another_result(tmp_path: Path, code: dict[str, str]) -> None:
    assert compare(tmp_path, "--variants", "base") == 0
    code["base"] = "raise SystemExit(1)"
    assert compare(tmp_path, "--variants", "base", "--iterations", "2") == 1


def test_a_real_run_is_made_tested_and_measured(tmp_path: Path) -> None:
    assert compare(tmp_path, "--variants", "base", "--seeds", "0", "--device", "cpu") == 0
    (found,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert (found["variant"], found["seed"], found["iterations"]) == ("base", 0, 1)
    assert len(found["dev"]) == 2
    assert found["test_last"]["estimate"] == pytest.approx(
        sum(found["test_scores"]) / len(found["test_scores"]), abs=1e-6
    )
    assert min(found[cost] for cost in ("steps", "rollouts", "sampled_tokens", "trained_row_tokens")) > 0
    assert open_run(tmp_path / "runs" / "base-0").state.tests_opened == 1
