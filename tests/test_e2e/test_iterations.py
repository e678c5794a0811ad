"""Iterations that learn, through the command line: choice by spread, refill and replay, from inputs to lineage."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from schemas.groups import GROUPS
from schemas.parquet import read_frame
from schemas.rollouts import ROLLOUTS
from schemas.training import BATCH_PLAN
from schemas.tries import TRIES
from tests.test_e2e.kit import RECIPE, artifact, keys, mmgrpo, own_recipe, run, state

THREE = RECIPE.replace("[rollout]", '[rollout]\nchoice = "spread"\nrefill = 5').replace(
    "[train]", "[run]\niterations = 3\nreplay = 1\n[train]"
)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return own_recipe(tmp_path_factory.mktemp("iterations") / "own", recipe=THREE)


@pytest.fixture(scope="module")
def finished(recipe: Path) -> Path:
    folder = recipe.parent.parent / "run"
    assert run(recipe, folder) == 0
    assert len(set(state(folder).policies)) == 4
    return folder


def test_what_decides_the_choice_and_what_is_replayed_are_inputs(finished: Path) -> None:
    rollouts = [artifact(finished, "rollout", index) for index in range(3)]
    for index in range(3):
        inputs = artifact(finished, "rollout", index).manifest.payload["inputs"]
        assert inputs.get("earlier") == (rollouts[index - 1].digest if index else None)
        for stage in ("group", "train"):
            inputs = artifact(finished, stage, index).manifest.payload["inputs"]
            assert inputs["rollout"] == rollouts[index].digest
            assert inputs.get("rollout.back-1") == (rollouts[index - 1].digest if index else None)
            assert "rollout.back-2" not in inputs


def test_each_iteration_knows_every_example_tried_so_far(finished: Path) -> None:
    tried: set[str] = set()
    for index in range(3):
        rolled = artifact(finished, "rollout", index)
        tried |= set(read_frame(rolled.file("rollouts.parquet"), ROLLOUTS)["example_id"])
        assert set(read_frame(rolled.file("tries.parquet"), TRIES)["example_id"]) == tried
        assert rolled.manifest.metrics["refill_ended"]


def test_replayed_rollouts_join_the_groups_of_their_example_and_are_trained_on(finished: Path) -> None:
    policies = state(finished).policies
    for index in (1, 2):
        group = artifact(finished, "group", index)
        members = read_frame(group.file("groups.parquet"), GROUPS)
        assert set(members["policy"]) == {policies[index - 1], policies[index]}
        mixed = members.group_by("group_id").agg(pl.col("policy").n_unique())
        assert mixed["policy"].max() == 2
        planned = read_frame(artifact(finished, "train", index).file("batch_plan.parquet"), BATCH_PLAN)
        assert set(planned["group_id"]) == set(members["group_id"])
        assert group.manifest.metrics["rollouts"] == sum(
            artifact(finished, "rollout", i).manifest.metrics["rollouts"] for i in (index - 1, index)
        )


def test_lineage_tells_every_iteration_that_grouped_a_rollout(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [read_frame(artifact(finished, "group", index).file("groups.parquet"), GROUPS) for index in (0, 1)]
    rollout = min(set(both[0]["rollout_id"]) & set(both[1]["rollout_id"]))
    assert mmgrpo("lineage", finished, "--rollout", rollout, "--json") == 0
    fate = json.loads(capsys.readouterr().out)
    assert {row["iteration"] for row in fate["members"]} == {0, 1}
    assert fate["policies"] == list(state(finished).policies[1:])
    late = min(set(both[1]["rollout_id"]) - set(both[0]["rollout_id"]))
    assert mmgrpo("lineage", finished, "--rollout", late, "--json") == 0
    assert json.loads(capsys.readouterr().out)["policies"] == list(state(finished).policies[2:])


def test_exported_groups_carry_the_tokens_of_replayed_members_too(finished: Path, tmp_path: Path) -> None:
    assert mmgrpo("export", "groups", finished, tmp_path / "groups.parquet", "--iteration", "1") == 0
    exported = pl.read_parquet(tmp_path / "groups.parquet")
    assert exported["policy"].n_unique() == 2
    assert exported["completion_ids"].null_count() == 0


def test_it_verifies_and_is_up_to_date(recipe: Path, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mmgrpo("verify", finished) == 0
    assert mmgrpo("plan", recipe, "--run-dir", finished) == 0
    assert "are up to date" in capsys.readouterr().out


def test_stage_by_stage_gives_the_same_groups(recipe: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for iteration in ("0", "1"):
        for stage in ("rollout", "group", "logprobs", "train"):
            options = ("--iteration", iteration, "--run-dir", folder, "--exec", "progress=off")
            assert mmgrpo("stage", stage, recipe, *options) == 0
    assert keys(folder)["iterations"] == keys(finished)["iterations"][:2]


def test_more_replay_than_staleness_is_refused(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(recipe, tmp_path / "run", "--set", "run.replay=2") == 2
    assert "raise group.staleness" in capsys.readouterr().err
    assert mmgrpo("plan", recipe, "--run-dir", tmp_path / "run", "--set", "group.staleness=2") == 0
