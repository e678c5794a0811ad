"""Rejection fine-tuning end to end: as the warm-up of a run, and as a whole baseline."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tests.test_e2e.kit import TINY, artifact, mmgrpo, run, state


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three iterations, the first of which is one of rejection fine-tuning."""
    folder = tmp_path_factory.mktemp("warmed") / "run"
    assert run(TINY, folder, "--set", "run.iterations=3", "--set", "rejection.iterations=1") == 0
    return folder


def test_the_first_iterations_are_named_and_trained_as_rejection_and_the_others_as_mmgrpo(warmed: Path) -> None:
    told = [artifact(warmed, "train", index).manifest.metrics for index in range(3)]
    assert [metrics["objective"] for metrics in told] == ["rejection fine-tuning", "mmGRPO", "mmGRPO"]
    groups = pl.read_parquet(artifact(warmed, "group").file("groups.parquet"))
    best = groups.filter(copy_kind="none").group_by("group_id").agg(pl.col("reward").max())
    assert told[0]["members"] == best.filter(pl.col("reward") > 0).height
    trained = pl.read_parquet(artifact(warmed, "train").file("trained.parquet"))
    reward = groups.filter(copy_kind="none").join(trained, on=["group_id", "rollout_id", "call_index"])
    assert (
        reward.sort("group_id")["reward"].to_list()
        == best.filter(pl.col("reward") > 0).sort("group_id")["reward"].to_list()
    )
    steps = pl.read_parquet(artifact(warmed, "train").file("steps.parquet"))
    assert steps["kl_ref"].null_count() == steps.height, "no KL unless rejection.beta asks for one"
    assert (steps["loss"] > 1.0).all(), "a random model's negative log-likelihood is that of a guess"
    assert mmgrpo("verify", warmed) == 0


def test_the_report_and_lineage_know_it(warmed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = json.loads((warmed / "report.json").read_text())
    assert any("Iteration 0: rejection fine-tuning" in note["text"] for note in numbers["notes"])
    capsys.readouterr()
    assert mmgrpo("lineage", warmed, "--policy", state(warmed).policies[1], "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert sum(row["members"] for row in rows) == artifact(warmed, "train").manifest.metrics["members"]
    assert not any(row["copies"] for row in rows)


def test_more_iterations_of_it_keep_those_that_are_there(warmed: Path, tmp_path: Path) -> None:
    before = state(warmed).iterations
    assert run(TINY, warmed, "--set", "run.iterations=3", "--set", "rejection.iterations=3") == 0
    after = state(warmed).iterations
    assert after[0] == before[0]
    assert after[1]["rollout"] == before[1]["rollout"]
    assert after[1]["train"] != before[1]["train"]
    told = [artifact(warmed, "train", index).manifest.metrics["objective"] for index in range(3)]
    assert told == ["rejection fine-tuning"] * 3
