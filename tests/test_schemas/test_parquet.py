from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.drift import CANARIES, DRIFT
from schemas.errors import ContractError
from schemas.examples import EXAMPLES, example_row
from schemas.groups import EXCLUDED, GROUPS
from schemas.parquet import read_rows, read_table, write_table
from schemas.policies import POLICIES
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from schemas.scores import LATENCY, SCORES
from schemas.training import BATCH_PLAN, LOGPROBS, STEPS


def rollout(**over: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(ROLLOUTS.schema.names)
    row |= {"example_id": "e", "rollout_index": 0, "rollout_id": "r0", "iteration": 0, "source": "student"}
    return row | {"status": "ok", "reward": 1.0} | over


def invocation(**over: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(INVOCATIONS.schema.names)
    row |= {"rollout_id": "r0", "call_index": 0, "module": "m", "invocation_index": 0, "attempt": 0, "lm": "student"}
    row |= {"messages": "[]", "parse_status": "none", "trainable": True, "concurrent": False, "fidelity": "exact"}
    return row | {"completion_ids": [1, 2], "sampling_logprobs": [-0.5, -0.25]} | over


def broken_rules(path: Path, rows: list[dict[str, Any]], spec: Any) -> dict[str, tuple[int, tuple[str, ...]]]:
    with pytest.raises(ContractError) as caught:
        write_table(rows, path, spec)
    assert not path.exists()
    return {violation.rule: (violation.count, violation.samples) for violation in caught.value.violations}


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = [example_row("train", {"text": "a ✓"}, {"label": 1}, None), example_row("dev", {"text": "b"}, None, None)]
    assert write_table(rows, tmp_path / "t.parquet", EXAMPLES) == 2
    assert read_rows(tmp_path / "t.parquet", EXAMPLES) == rows


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    rows = [rollout(rollout_id=f"r{index}", rollout_index=index) for index in range(50)]
    whole = pa.Table.from_pylist(rows, schema=ROLLOUTS.schema)
    write_table(rows, tmp_path / "a.parquet", ROLLOUTS)
    write_table(pa.concat_tables([whole[:7], whole[7:]]), tmp_path / "b.parquet", ROLLOUTS)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_a_violation_lists_every_rule_with_count_and_three_keys(tmp_path: Path) -> None:
    rows = [rollout(rollout_id=f"r{index}", reward=float("nan")) for index in range(5)]
    rows += [rollout(rollout_id="r9", status="fine"), rollout(rollout_id="r9", source=None)]
    broken = broken_rules(tmp_path / "t.parquet", rows, ROLLOUTS)
    reward = next(rule for rule in broken if rule.startswith("reward is finite"))
    assert broken[reward] == (5, ("rollout_id=r0", "rollout_id=r1", "rollout_id=r2"))
    assert broken["(rollout_id) is unique"][0] == 2
    assert broken["source is not null"] == (1, ("rollout_id=r9",))
    assert broken[next(rule for rule in broken if rule.startswith("status is one of"))][0] == 1


@pytest.mark.parametrize("reward", [float("inf"), float("-inf"), float("nan"), 1e7])
def test_a_reward_must_be_finite_and_bounded(tmp_path: Path, reward: float) -> None:
    assert broken_rules(tmp_path / "t.parquet", [rollout(reward=reward)], ROLLOUTS)


def test_a_missing_reward_stays_null_and_a_zero_stays_zero(tmp_path: Path) -> None:
    rows = [rollout(rollout_id="a", reward=None), rollout(rollout_id="b", reward=0.0)]
    write_table(rows, tmp_path / "t.parquet", ROLLOUTS)
    assert [row["reward"] for row in read_rows(tmp_path / "t.parquet", ROLLOUTS)] == [None, 0.0]


def test_ids_and_logprobs_must_have_equal_lengths_and_finite_values(tmp_path: Path) -> None:
    rows = [
        invocation(call_index=0, sampling_logprobs=[-0.5]),
        invocation(call_index=1, sampling_logprobs=[-0.5, float("nan")]),
        invocation(call_index=2, sampling_logprobs=[-0.5, None]),
        invocation(call_index=3, completion_ids=[], sampling_logprobs=[]),
        invocation(call_index=4, completion_ids=None, sampling_logprobs=None),
    ]
    broken = broken_rules(tmp_path / "t.parquet", rows, INVOCATIONS)
    assert broken["completion_ids and sampling_logprobs have equal lengths"][1] == ("rollout_id=r0, call_index=0",)
    assert broken["sampling_logprobs holds finite numbers only"][0] == 2
    assert len(broken) == 2


def test_an_unknown_and_a_missing_column_are_both_named(tmp_path: Path) -> None:
    table = pa.table({"example_id": ["a"], "split": ["dev"], "surprise": [1]})
    with pytest.raises(ContractError) as caught:
        write_table(table, tmp_path / "t.parquet", EXAMPLES)
    text = str(caught.value)
    assert "column 'inputs' is present" in text
    assert "column 'surprise' is known" in text


def test_wider_types_are_narrowed_when_nothing_is_lost_and_refused_otherwise(tmp_path: Path) -> None:
    def table(index: int) -> pa.Table:
        rows = pa.Table.from_pylist([rollout()], schema=ROLLOUTS.schema)
        position = rows.schema.get_field_index("rollout_index")
        return rows.set_column(position, "rollout_index", pa.array([index], pa.int64()))

    write_table(table(7), tmp_path / "a.parquet", ROLLOUTS)
    assert read_table(tmp_path / "a.parquet", ROLLOUTS)["rollout_index"].to_pylist() == [7]
    with pytest.raises(ContractError, match="rollout_index"):
        write_table(table(2**40), tmp_path / "b.parquet", ROLLOUTS)


def test_a_number_is_never_read_from_text(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([rollout()], schema=ROLLOUTS.schema)
    position = rows.schema.get_field_index("reward")
    with pytest.raises(ContractError, match="reward"):
        write_table(rows.set_column(position, "reward", pa.array(["1.0"])), tmp_path / "t.parquet", ROLLOUTS)


def test_an_unknown_schema_version_and_another_table_are_refused(tmp_path: Path) -> None:
    write_table([rollout()], tmp_path / "t.parquet", ROLLOUTS)
    with pytest.raises(ContractError, match="footer says table 'rollouts'"):
        read_table(tmp_path / "t.parquet", EXAMPLES)
    table = pq.read_table(tmp_path / "t.parquet")
    metadata = {**(table.schema.metadata or {}), b"mmgrpo.version": b"99"}
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "new.parquet")
    with pytest.raises(ContractError, match="version 99"):
        read_table(tmp_path / "new.parquet", ROLLOUTS)


@pytest.mark.parametrize("keep", [0, 3, 40, 200])
def test_a_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "rollouts-3.parquet"
    write_table([rollout()], path, ROLLOUTS)
    path.write_bytes(path.read_bytes()[:-keep] if keep else b"")
    with pytest.raises(ContractError, match=r"rollouts-3\.parquet"):
        read_table(path, ROLLOUTS)


@pytest.mark.parametrize(
    "spec",
    [
        EXAMPLES,
        ROLLOUTS,
        INVOCATIONS,
        GROUPS,
        EXCLUDED,
        POLICIES,
        BATCH_PLAN,
        STEPS,
        LOGPROBS,
        SCORES,
        LATENCY,
        DRIFT,
        CANARIES,
    ],
    ids=lambda spec: spec.name,
)
def test_every_table_has_a_version_a_key_and_can_be_empty(tmp_path: Path, spec: Any) -> None:
    assert spec.version >= 1
    assert set(spec.key) <= set(spec.schema.names)
    assert {name for rule in spec.rules for name in rule.columns} <= set(spec.schema.names)
    assert write_table([], tmp_path / "t.parquet", spec) == 0
    assert read_rows(tmp_path / "t.parquet", spec) == []
