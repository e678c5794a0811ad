"""Whole rollouts as members through the command line: CISPO with a ratio and a correction of the whole rollout."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from schemas.groups import EXCLUDED, GROUPS
from schemas.parquet import read_frame
from schemas.rollouts import INVOCATIONS
from tests.test_e2e.kit import TINY, artifact, mmgrpo, run, state

SETTINGS = ("group.unit=trajectory", "train.loss=cispo", "train.ratio_level=sequence", "train.rho_level=sequence")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trajectory") / "run"
    assert run(TINY, folder, *(part for setting in SETTINGS for part in ("--set", setting))) == 0
    return folder


def test_a_run_over_trajectories_trains_and_verifies(finished: Path) -> None:
    assert len(set(state(finished).policies)) == 3
    assert mmgrpo("verify", finished) == 0


def test_the_report_counts_rollouts_as_members_and_every_module(finished: Path) -> None:
    for iteration, told in enumerate(json.loads((finished / "report.json").read_text())["iterations"]):
        metrics = artifact(finished, "train", iteration).manifest.metrics
        assert told["groups"]["members"] == metrics["members"]
        assert told["groups"]["groups"] == metrics["groups"]
        assert told["groups"]["modules"].keys() == told["groups"]["pull"].keys() == {"plan", "step"}


def test_a_group_is_an_example_and_a_member_all_trained_calls_of_a_rollout(finished: Path) -> None:
    group = artifact(finished, "group")
    members = read_frame(group.file("groups.parquet"), GROUPS)
    assert members.group_by("example_id").agg(pl.col("group_id").n_unique())["group_id"].to_list() == [1] * (
        members["example_id"].n_unique()
    )
    assert members["module"].n_unique() == 2
    calls = read_frame(artifact(finished, "rollout").file("invocations.parquet"), INVOCATIONS)
    excluded = read_frame(group.file("excluded.parquet"), EXCLUDED).drop_nulls("call_index")
    left = calls.join(excluded, on=["rollout_id", "call_index"], how="anti")
    own = members.select("rollout_id", "call_index").unique()
    assert own.height == left.height
    of_rollout = members.filter(pl.col("copy_kind") == "none").group_by("rollout_id").agg(pl.col("weight").sum())
    assert of_rollout["weight"].to_list() == pytest.approx([1.0] * of_rollout.height)


def test_the_trainer_counts_rollouts(finished: Path) -> None:
    steps = pl.read_parquet(artifact(finished, "train").file("steps.parquet"))
    rows = read_frame(artifact(finished, "group").file("groups.parquet"), GROUPS)
    first = pl.col("call_index") == pl.col("call_index").min().over("group_id", "rollout_id")
    assert steps["members"].sum() == rows.filter(first).height < rows.height
    assert artifact(finished, "train").manifest.metrics["members"] == steps["members"].sum()
