"""A metric that asks an LM, through the whole loop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.partial import TELEMETRY_FILE
from schemas.groups import GROUPS
from schemas.judge_calls import JUDGE_CALLS
from schemas.parquet import read_rows
from tests.test_e2e.kit import PROGRAM, RECIPE, artifact, mmgrpo, own_recipe, run

JUDGED = PROGRAM[: PROGRAM.index("def metric")] + (
    "def metric(example, output, calls, call):\n"
    "    said = call('grade', [{'role': 'user', 'content': 'Grade ' + output}]).text\n"
    "    return sum(c.islower() for c in output) / len(output) + 0.01 * len(said)\n"
)
SECTIONS = '[lms.judge]\nmax_new_tokens = 6\n[metric]\nlm = "judge"\n'


def test_a_judged_run_is_made_again_without_asking_the_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMGRPO_CACHE", str(tmp_path / "cache"))
    recipe = own_recipe(tmp_path / "own", program=JUDGED, recipe=RECIPE + SECTIONS)
    for name in ("first", "second"):
        assert run(recipe, tmp_path / name) == 0
        assert mmgrpo("verify", tmp_path / name) == 0
    made = [artifact(tmp_path / name, "rollout") for name in ("first", "second")]
    assert made[0].digest == made[1].digest
    judged = read_rows(made[0].file("judge_calls.parquet"), JUDGE_CALLS)
    assert made[0].manifest.metrics["judge_calls"] == len(judged) > 0
    told = [json.loads((one.path / TELEMETRY_FILE).read_text()) for one in made]
    assert [figures.get("judge_answers_remembered", 0) for figures in told][1] == len(judged)
    group = artifact(tmp_path / "first", "group")
    assert {row["module"] for row in read_rows(group.file("groups.parquet"), GROUPS)} <= {"write"}
