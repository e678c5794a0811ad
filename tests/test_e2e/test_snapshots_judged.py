"""Scores that come when their traces lie in a snapshot already: what people say later of what was logged before."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tests.test_e2e.kit import RECIPE, own_recipe
from tests.test_e2e.test_snapshots import manifest, onto, written
from tests.test_e2e.test_traces import ingest, traces

RULES = RECIPE + '[ingest]\nreward = "thumbs"\n'


def scores(path: Path, values: dict[int, float]) -> Path:
    rows = [{"trace_id": f"{number:032x}", "name": "thumbs", "score": value} for number, value in values.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_scores_that_come_later_give_the_bytes_of_all_together(tmp_path: Path) -> None:
    recipe, every = own_recipe(tmp_path / "a", recipe=RULES), traces(12)
    old, new = written(every[:8], tmp_path / "old.json"), written(every[8:], tmp_path / "new.json")
    told = scores(tmp_path / "scores.jsonl", {number: number / 12 for number in range(1, 13, 2)})
    parent = ingest(recipe, old)
    child = onto(recipe, parent, new, told)
    together = ingest(own_recipe(tmp_path / "b", recipe=RULES), old, new, told)
    assert manifest(child)["digest"] == manifest(together)["digest"]
    assert manifest(child)["metrics"]["onto"] == {"added": 4, "replaced": 4}
    rewards = pl.read_parquet(child / "rollouts.parquet")["reward"]
    assert rewards.is_not_null().sum() == 6


def test_all_scores_exported_again_replace_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, every = own_recipe(tmp_path / "a", recipe=RULES), traces(8)
    told = scores(tmp_path / "scores.jsonl", dict.fromkeys(range(1, 9), 0.5))
    parent = ingest(recipe, written(every, tmp_path / "old.json"), told)
    assert onto(recipe, parent, told) == parent
    assert "which holds exactly these traces already" in capsys.readouterr().out
    child = onto(recipe, parent, scores(tmp_path / "one.jsonl", {3: 1.0, 99: 0.0}))
    assert manifest(child)["metrics"]["onto"] == {"added": 1, "replaced": 1}
    assert sorted(pl.read_parquet(child / "rollouts.parquet")["reward"]) == [0.5] * 7 + [1.0]
