"""The group stage as a whole, on small tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.groups import EXCLUDED, GROUPS, SUMMARY
from schemas.parquet import read_rows
from stages.engines.models import resolve_base
from tests.test_stages.group_kit import (
    Row,
    advantages,
    group_rows,
    one_module,
    policies_artifact,
    reasons,
    recipe,
    rollout,
    rollout_artifact,
    run_stage,
)

# --- advantages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["group", "none"])
def test_a_one_module_program_gets_trls_own_advantages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    rewards = [[0.0, 1.0, 1.0, 0.25], [0.5, -1.0, 3.0, 0.125]]
    base = resolve_base("tiny-random", tmp_path, tmp_path)
    settings = GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=8, num_generations=4, max_completion_length=2,
        max_steps=1, scale_rewards=scale, report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(base.path),
        processing_class=AutoTokenizer.from_pretrained(base.path),
        reward_funcs=lambda completions, **_: [value for values in rewards for value in values],
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
    )
    trainer.train()

    rules = recipe(k=4, scale="group_std" if scale == "group" else "none")
    groups, excluded = group_rows(tmp_path, *one_module(*rewards), rules)
    assert advantages(groups) == pytest.approx(list(trainer._logs["advantages"]), rel=1e-6)
    assert len({row["group_id"] for row in groups}) == 2
    assert not excluded


def test_rewards_of_any_size_are_summed_exactly(tmp_path: Path) -> None:
    rewards = [1e6, -1e6, 999_999.999999, 1e6 - 1e-6]
    groups, _ = group_rows(tmp_path, *one_module(rewards), recipe(k=4, eps=0.0, scale="none"))
    assert [row["reward"] for row in groups] == rewards
    mean = sum(round(value * 1e6) for value in rewards) / 4e6
    assert advantages(groups) == pytest.approx([value - mean for value in rewards], abs=1e-9)


def test_leaving_a_rollout_out_takes_its_copies_and_attempts_along(tmp_path: Path) -> None:
    rows, calls = one_module([0.0, 1.0, 0.5])
    first = {**calls[0], "call_index": 0, "parse_status": "failed", "parsed_share": 0.5}
    calls = [first, {**calls[0], "call_index": 1, "attempt": 1}, *calls[1:]]
    rules = recipe(baseline="leave_one_rollout_out", scale="none", k=4)
    groups, _ = group_rows(tmp_path, rows, calls, rules)
    # Selection adds a copy of rollout 1. Others of 0: 1, 1, 0.5; others of 1: 0, 0.5; others of 2: 0, 1, 1.
    wanted = {"e0-00": (0.0 - 2.5 / 3, -0.5 - 2.5 / 3), "e0-01": (0.75, 0.75), "e0-02": (0.5 - 2 / 3,)}
    found: dict[str, tuple[float, ...]] = {}
    for row in groups:
        found[row["rollout_id"]] = (*found.get(row["rollout_id"], ()), row["advantage"])
    assert found.keys() == wanted.keys()
    assert all(found[name] == pytest.approx(wanted[name]) for name in wanted)


def test_a_flat_group_moves_nothing(tmp_path: Path) -> None:
    rows, calls = one_module([0.5, 0.5, 0.5], [0.0, 1.0, 1.0])
    groups, excluded = group_rows(tmp_path, rows, calls, recipe())
    assert {row["example_id"] for row in groups} == {"e1"}
    assert reasons(excluded) == ["flat_group"] * 3
    groups, excluded = group_rows(tmp_path, rows, calls, recipe(flat="keep"))
    assert {row["advantage"] for row in groups if row["example_id"] == "e0"} == {0.0}
    assert not excluded


def test_a_reward_of_zero_is_a_reward(tmp_path: Path) -> None:
    groups, _ = group_rows(tmp_path, *one_module([0.0, 1.0]), recipe(format_failure_score=-1.0))
    assert groups[0]["reward"] == 0.0


def test_module_std_is_one_number_for_all_groups_of_a_module(tmp_path: Path) -> None:
    groups, _ = group_rows(tmp_path, *one_module([0.0, 1.0], [0.0, 4.0]), recipe(scale="module_std", k=2, eps=0.0))
    std = (sum((value - 1.25) ** 2 for value in (0.0, 1.0, 0.0, 4.0)) / 3) ** 0.5
    assert advantages(groups) == pytest.approx([-0.5 / std, 0.5 / std, -2 / std, 2 / std])


# --- the stage as a job -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        one_module([0.5, 0.5], [1.0, 1.0]),
        one_module([None, None], status="program_error"),
        ([rollout("e0", i, float(i)) for i in range(3)], []),
        ([], []),
    ],
    ids=["all flat", "all failed", "never called", "empty"],
)
def test_nothing_to_train_is_said(tmp_path: Path, data: tuple[list[Row], list[Row]]) -> None:
    artifacts = {"rollout": rollout_artifact(tmp_path / "r", *data), "policies": policies_artifact(tmp_path / "p")}
    metrics, out = run_stage(tmp_path, artifacts, recipe())
    assert metrics["nothing_to_train"]
    assert metrics["groups"] == 0
    assert read_rows(out.shards["groups.parquet"], GROUPS) == []
    assert sum(out.excluded.values()) == len(read_rows(out.shards["excluded.parquet"], EXCLUDED))


def test_the_summary_accounts_for_every_invocation(tmp_path: Path) -> None:
    rows, calls = one_module([0.0, 1.0, 0.25, 0.5], [0.5, 0.5, 0.5, None])
    artifacts = {
        "rollout": rollout_artifact(tmp_path / "r", rows, calls),
        "policies": policies_artifact(tmp_path / "p"),
    }
    metrics, out = run_stage(tmp_path, artifacts, recipe(k=2))
    (row,) = read_rows(out.shards["summary.parquet"], SUMMARY)
    excluded = json.loads(row["excluded"])
    assert excluded == {"flat_group": 2, "not_selected": 3, "reward_missing": 1}
    assert row["invocations"] == row["members"] + sum(excluded.values()) == 8
    assert (row["groups"], row["flat_groups"], row["size_min"], row["size_max"]) == (1, 1, 2, 2)
    assert row["not_selected_share"] == pytest.approx(3 / 7)
    assert row["reward_mean"] == pytest.approx((1.75 + 1.5) / 7)
    assert row["advantage_after"] == 0.0
    assert row["weighted_advantage"] == pytest.approx(2 * 0.5 / (0.5**0.5 + 1e-4), abs=1e-5)
    assert metrics["flat_share"] == 0.5
    assert not metrics["nothing_to_train"]
