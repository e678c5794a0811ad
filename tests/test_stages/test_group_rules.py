"""What the group stage does with failures, sources, loops and weights: one claim after the other."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from schemas.errors import ContractError, DataError, RecipeError
from tests.test_stages.group_kit import (
    Row,
    advantages,
    artifact,
    call,
    group_rows,
    one_module,
    policies_artifact,
    reasons,
    recipe,
    rollout,
    rollout_artifact,
    run_stage,
)

# --- failures and exclusions ------------------------------------------------------------------------------------------


def two_modules(*second: Row) -> tuple[list[Row], list[Row]]:
    """Modules a and b; the second module's call as given."""
    rows = [rollout("e0", i, None if fields.get("failed") else 1.0, status="ok") for i, fields in enumerate(second)]
    calls = []
    for row, fields in zip(rows, second, strict=True):
        row["status"] = fields.get("failed", "ok")
        own = {name: value for name, value in fields.items() if name != "failed"}
        calls += [call(row["rollout_id"], 0, "a"), call(row["rollout_id"], 1, "b", **own)]
    return rows, calls


FAILED = {"failed": "parse_failed", "parse_status": "failed", "parsed_share": 0.25}


@pytest.mark.parametrize(("upstream", "wanted"), [("failure_score", -0.5), ("format", -0.875), ("exclude", None)])
def test_a_failed_parse_has_a_format_reward_and_its_siblings_what_the_recipe_says(
    tmp_path: Path, upstream: str, wanted: float | None
) -> None:
    rules = recipe(upstream_on_failure=upstream, failure_score=-0.5, k=3)
    groups, excluded = group_rows(tmp_path, *two_modules({}, {}, FAILED), rules)
    found = {row["module"]: row["reward"] for row in groups if row["rollout_id"] == "e0-02"}
    assert found["b"] == -1.0 + 0.25 * 0.5
    assert found.get("a") == wanted
    assert ("upstream_of_failure" in reasons(excluded)) == (wanted is None)


def test_a_crash_scores_all_calls_alike(tmp_path: Path) -> None:
    groups, _ = group_rows(tmp_path, *two_modules({}, {"failed": "timeout"}), recipe(k=2))
    assert [row["reward"] for row in groups] == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("unit", ["invocation", "trajectory"])
@pytest.mark.parametrize("status", ["engine_error", "metric_error"])
def test_a_rollout_that_the_machine_or_the_metric_failed_is_a_crash_or_left_out(
    tmp_path: Path, status: str, unit: str
) -> None:
    data = two_modules({}, {}, {"failed": status})
    groups, excluded = group_rows(tmp_path, *data, recipe(k=3, flat="keep", unit=unit))
    assert {row["reward"] for row in groups if row["rollout_id"] == "e0-02"} == {0.0}
    assert not excluded
    groups, excluded = group_rows(tmp_path, *data, recipe(k=2, flat="keep", unit=unit, outage="exclude"))
    assert {row["rollout_id"] for row in groups} == {"e0-00", "e0-01"}
    assert {row["reward"] for row in groups} == {1.0}
    assert reasons(excluded) == ["not_scored"] * len(excluded)
    assert {row["rollout_id"] for row in excluded} == {"e0-02"}


def test_a_truncated_completion_fails_or_leaves_never_both(tmp_path: Path) -> None:
    data = two_modules({}, {}, {"finish_reason": "length"})
    groups, excluded = group_rows(tmp_path, *data, recipe(k=3, flat="keep"))
    assert [row["reward"] for row in groups] == [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    assert not excluded
    groups, excluded = group_rows(tmp_path, *data, recipe(truncated="mask", k=3, flat="keep", select="all"))
    assert [row["reward"] for row in groups] == [1.0] * 5
    assert reasons(excluded) == ["truncated"]


def test_only_the_first_failed_attempt_joins_outside_mean_and_std(tmp_path: Path) -> None:
    rows, calls = one_module([1.0, 0.0])
    tries = [{**calls[0], "call_index": at, "attempt": at, "parse_status": "failed"} for at in range(2)]
    calls = [*tries, {**calls[0], "call_index": 2, "attempt": 2}, calls[1]]
    groups, excluded = group_rows(tmp_path, rows, calls, recipe(k=2, scale="none"))
    assert [(row["attempt"], row["reward"], row["advantage"]) for row in groups] == [
        (2, 1.0, 0.5),
        (0, -1.0, -1.5),
        (0, 0.0, -0.5),
    ]
    assert reasons(excluded) == ["earlier_attempt"]


def test_a_null_reward_of_an_ok_rollout_is_excluded_and_counted(tmp_path: Path) -> None:
    artifacts = {
        "rollout": rollout_artifact(tmp_path / "r", *one_module([None, 1.0, 0.0])),
        "policies": policies_artifact(tmp_path / "p"),
    }
    _, out = run_stage(tmp_path, artifacts, recipe())
    assert out.excluded == {"reward_missing": 1}


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 2e6])
def test_a_reward_that_is_no_number_is_an_error_that_names_the_row(tmp_path: Path, reward: float) -> None:
    folder = tmp_path / "r"
    rollout_artifact(folder, *one_module([0.0, 1.0]))
    path = folder / "rollouts.parquet"
    pl.read_parquet(path).with_columns(reward=pl.Series([0.0, reward])).write_parquet(path)
    artifacts = {"rollout": artifact(folder, "rollout"), "policies": policies_artifact(tmp_path / "p")}
    with pytest.raises(ContractError, match=r"reward is finite(.|\n)*e0-01"):
        run_stage(tmp_path, artifacts, recipe())


def test_calls_that_are_not_trained_stay_out(tmp_path: Path) -> None:
    rows, calls = one_module([0.0, 1.0])
    calls += [call(row["rollout_id"], 1, "judge", lm="other") for row in rows]
    calls += [call(row["rollout_id"], 2, "frozen", trainable=False) for row in rows]
    groups, excluded = group_rows(tmp_path, rows, calls, recipe())
    assert {row["module"] for row in groups} == {"m"}
    assert reasons(excluded) == ["not_trainable"] * 4


def test_a_repeated_call_counts_once(tmp_path: Path) -> None:
    rows, calls = one_module([0.0, 1.0])
    groups, excluded = group_rows(tmp_path, rows, [*calls, {**calls[0], "call_index": 5}], recipe(k=2))
    assert len(groups) == 2
    assert [(row["call_index"], row["reason"]) for row in excluded] == [(5, "duplicate")]


def test_a_rollout_that_two_inputs_hold_counts_once(tmp_path: Path) -> None:
    rows, calls = one_module([0.0, 1.0])
    artifacts = {
        "rollout": rollout_artifact(tmp_path / "r", rows, calls),
        "rollout.replay": rollout_artifact(tmp_path / "s", rows[:1], calls[:1]),
        "policies": policies_artifact(tmp_path / "p"),
    }
    metrics, out = run_stage(tmp_path, artifacts, recipe(k=2))
    assert metrics["members"] == 2
    assert out.excluded == {"duplicate": 2}  # its row, and its call's


def test_two_inputs_that_disagree_about_a_rollout_are_refused(tmp_path: Path) -> None:
    rows, calls = one_module([0.0, 1.0])
    artifacts = {
        "rollout": rollout_artifact(tmp_path / "r", rows, calls),
        "rollout.replay": rollout_artifact(tmp_path / "s", [{**rows[0], "reward": 0.5}], calls[:1]),
        "policies": policies_artifact(tmp_path / "p"),
    }
    with pytest.raises(ContractError, match=r"\(rollout_id\) is unique(.|\n)*e0-00"):
        run_stage(tmp_path, artifacts, recipe())


def test_a_call_without_its_rollout_is_refused(tmp_path: Path) -> None:
    rows, calls = one_module([0.0, 1.0])
    with pytest.raises(ContractError, match=r"rollout_id is in the rollouts table(.|\n)*nobody"):
        group_rows(tmp_path, rows, [*calls, call("nobody", 0)], recipe())


# --- sources and policies ---------------------------------------------------------------------------------------------


def test_a_policy_older_than_the_limit_is_stale(tmp_path: Path) -> None:
    rows, calls = one_module([0.0, 1.0, 0.0, 1.0])
    for row, policy in zip(rows, ("now", "before", "old", "now"), strict=True):
        row["policy"] = policy
    _, excluded = group_rows(tmp_path, rows, calls, recipe(staleness=1))
    assert [(row["rollout_id"], row["reason"]) for row in excluded] == [("e0-02", "stale")]


@pytest.mark.parametrize(("policy", "says"), [(None, "no behaviour policy"), ("strange", "not of this run")])
def test_an_unknown_policy_is_refused_unless_admitted(tmp_path: Path, policy: str | None, says: str) -> None:
    data = one_module([0.0, 1.0], policy=policy)
    with pytest.raises(DataError, match=says):
        group_rows(tmp_path, *data, recipe())
    groups, _ = group_rows(tmp_path, *data, recipe(unknown_policy="admit", k=2))
    assert [row["policy"] for row in groups] == [policy, policy]


@pytest.mark.parametrize("policy", [None, "strange"])
def test_rollouts_of_an_unknown_policy_can_be_left_out_beside_known_ones(tmp_path: Path, policy: str | None) -> None:
    rows, calls = one_module([0.0, 1.0, 1.0, 0.5])
    rows[1]["policy"] = policy
    rows[2] |= {"policy": policy, "source": "ingest:otlp_json"}
    rows[3] |= {"policy": policy, "source": "teacher:big"}
    _, excluded = group_rows(tmp_path, rows, calls, recipe(unknown_policy="exclude", k=4, select="all", flat="keep"))
    left = {row["rollout_id"] for row in excluded if row["reason"] == "unknown_policy"}
    assert left == ({"e0-01", "e0-02"} if policy is None else {"e0-01"})  # a policy of another run is known by its name


def test_teachers_are_compared_with_the_students_mean(tmp_path: Path) -> None:
    rows, calls = one_module([0.0, 1.0, 4.0])
    rows[2] |= {"source": "teacher:big", "policy": "elsewhere"}
    groups, _ = group_rows(tmp_path, rows, calls, recipe(scale="none", k=3))
    assert advantages(groups) == pytest.approx([-0.5, 0.5, 3.5])
    assert groups[2]["source"] == "teacher:big"


def test_a_capped_source_supplies_its_share_at_most(tmp_path: Path) -> None:
    rows, calls = one_module([0.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    for row in rows[3:]:
        row |= {"source": "teacher:big"}
    groups, excluded = group_rows(tmp_path, rows, calls, recipe(source_caps={"teacher": 0.25}, select="all"))
    assert [row["source"] for row in groups].count("teacher:big") == 1
    assert reasons(excluded) == ["source_cap"] * 2


# --- groups, weights, trajectories ------------------------------------------------------------------------------------


def loop(*lengths: int) -> tuple[list[Row], list[Row]]:
    rows = [rollout("e0", i, float(i)) for i in range(len(lengths))]
    return rows, [call(row["rollout_id"], p, "m", p) for row, n in zip(rows, lengths, strict=True) for p in range(n)]


@pytest.mark.parametrize(("pad", "sizes"), [("ragged", [3, 2, 1]), ("truncate", [3]), ("fill_last", [3, 3, 3])])
def test_positions_are_padded_as_the_recipe_says(tmp_path: Path, pad: str, sizes: list[int]) -> None:
    groups, _ = group_rows(tmp_path, *loop(1, 2, 3), recipe(pad=pad, select="all", min_group=1, flat="keep"))
    positions = [row["invocation_index"] for row in groups]
    assert [positions.count(at) for at in sorted(set(positions))] == sizes


def test_a_copy_stands_at_the_position_it_fills_and_names_its_source(tmp_path: Path) -> None:
    groups, _ = group_rows(tmp_path, *loop(1, 3), recipe(pad="fill", select="all"))
    copies = [row for row in groups if row["copy_kind"] == "fill"]
    assert [(row["invocation_index"], row["rollout_id"], row["call_index"]) for row in copies] == [
        (1, "e0-00", 0),
        (2, "e0-00", 0),
    ]


def test_fill_draws_depend_on_the_seed_and_on_nothing_around_them(tmp_path: Path) -> None:
    def sources(seed: int, *lengths: int) -> list[tuple[int, int]]:
        groups, _ = group_rows(tmp_path, *loop(*lengths), recipe(pad="fill", select="all", seed=seed))
        return [(row["invocation_index"], row["call_index"]) for row in groups if row["rollout_id"] == "e0-00"]

    assert sources(0, 4, 9) == sources(0, 4, 9, 2, 7)
    assert len({tuple(sources(seed, 4, 9)) for seed in range(5)}) > 1


def test_a_rollout_that_never_called_a_module_spoils_its_group_only_when_strict(tmp_path: Path) -> None:
    rows, calls = one_module([0.0, 1.0, 0.0])
    groups, excluded = group_rows(tmp_path, rows, calls[:2], recipe(k=2))
    assert len(groups) == 2
    assert reasons(excluded) == ["no_calls"]
    groups, excluded = group_rows(tmp_path, rows, calls[:2], recipe(strict=True))
    assert not groups
    assert reasons(excluded) == ["strict", "strict", "no_calls"]


def test_predictors_with_equal_positions_but_other_pasts_part_by_path(tmp_path: Path) -> None:
    rows = [rollout("e0", i, float(i % 2)) for i in range(4)]
    calls = []
    for row in rows:
        first = "a" if row["rollout_index"] < 2 else "b"
        calls += [call(row["rollout_id"], 0, first), call(row["rollout_id"], 1, "c")]
    together, _ = group_rows(tmp_path, rows, calls, recipe(select="all"))
    apart, _ = group_rows(tmp_path, rows, calls, recipe(select="all", key_columns=["path"]))
    assert len({row["group_id"] for row in together if row["module"] == "c"}) == 1
    assert len({row["group_id"] for row in apart if row["module"] == "c"}) == 2


def test_a_module_called_often_weighs_as_one(tmp_path: Path) -> None:
    rows, calls = loop(4, 4)
    calls += [call(row["rollout_id"], 4, "once") for row in rows]
    groups, _ = group_rows(tmp_path, rows, calls, recipe(balance="module", select="all"))
    totals = {name: sum(row["weight"] for row in groups if row["module"] == name) for name in ("m", "once")}
    assert totals == {"m": 2.0, "once": 2.0}


def test_small_groups_take_no_weight_from_the_others(tmp_path: Path) -> None:
    rules = recipe(balance="module", pad="ragged", select="all", min_group=3)
    groups, excluded = group_rows(tmp_path, *loop(3, 3, 2, 1), rules)
    assert {row["weight"] for row in groups} == {0.5}
    assert reasons(excluded) == ["small_group"] * 2


def test_credit_mixes_the_reward_with_a_named_part(tmp_path: Path) -> None:
    rows, calls = one_module([0.0, 1.0])
    for row, part in zip(rows, (1.0, 0.25), strict=True):
        row["reward_parts"] = json.dumps({"leakage": part})
    rules = recipe(credit={"m": {"reward": 0.5, "leakage": 2.0}}, k=2)
    groups, _ = group_rows(tmp_path, rows, calls, rules)
    assert [row["reward"] for row in groups] == [2.0, 1.0]
    with pytest.raises(DataError, match="'leak'"):
        group_rows(tmp_path, rows, calls, recipe(credit={"m": {"leak": 1.0}}))


def test_a_trajectory_compares_whole_rollouts_and_weighs_by_tokens(tmp_path: Path) -> None:
    rows = [rollout("e0", i, float(i)) for i in range(2)]
    calls = [call(row["rollout_id"], at, name, completion_ids=[1] * n) for row in rows for at, (name, n) in
             enumerate((("a", 3), ("b", 1)))]  # fmt: skip
    groups, _ = group_rows(tmp_path, rows, calls, recipe(unit="trajectory", k=2, scale="none"))
    assert [(row["module"], row["advantage"], row["weight"]) for row in groups] == [
        ("a", -0.5, 0.75),
        ("b", -0.5, 0.25),
        ("a", 0.5, 0.75),
        ("b", 0.5, 0.25),
    ]
    assert len({row["group_id"] for row in groups}) == 1
    with pytest.raises(RecipeError, match="trajectory"):
        group_rows(tmp_path, rows, calls, recipe(unit="trajectory", key_columns=["path"]))


@pytest.mark.parametrize(("truncated", "rewards"), [("failure", [1.0, 1.0, 0.0, 0.0]), ("mask", [1.0, 1.0])])
def test_a_trajectory_with_a_truncated_call_fails_or_leaves_as_a_whole(
    tmp_path: Path, truncated: str, rewards: list[float]
) -> None:
    data = two_modules({}, {"finish_reason": "length"})
    rules = recipe(unit="trajectory", truncated=truncated, k=2, flat="keep", min_group=1, select="all")
    groups, excluded = group_rows(tmp_path, *data, rules)
    assert [row["reward"] for row in groups] == rewards
    assert reasons(excluded) == ["truncated"] * (4 - len(rewards))
