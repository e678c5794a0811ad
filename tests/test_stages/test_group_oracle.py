"""The group stage gives what its rules say: every mode against the plain version in `tests.oracles`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import oracles
from tests.test_stages.group_kit import POLICIES, Row, group_rows, recipe, tables

FLOATS = ("reward", "advantage", "weight")


def assert_same(found: tuple[list[Row], list[Row]], wanted: tuple[list[Row], list[Row]]) -> None:
    rows, expected = found[0], wanted[0]
    plain = [{name: value for name, value in row.items() if name not in (*FLOATS, "member_index")} for row in rows]
    assert plain == [{name: value for name, value in row.items() if name not in FLOATS} for row in expected]
    for name in FLOATS:
        assert [row[name] for row in rows] == pytest.approx([row[name] for row in expected], rel=1e-9, abs=1e-12)
    key = lambda row: (row["rollout_id"], -1 if row["call_index"] is None else row["call_index"])  # noqa: E731
    assert sorted(found[1], key=key) == sorted(wanted[1], key=key)


def rules() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "pad": st.sampled_from(("truncate", "fill", "fill_last", "ragged")),
            "strict": st.booleans(),
            "select": st.sampled_from(("max_variance", "max_variance", "even", "random", "all")),
            "k": st.integers(1, 7),
            "baseline": st.sampled_from(("group_mean", "leave_one_rollout_out")),
            "baseline_over": st.sampled_from(("selected", "all")),
            "scale": st.sampled_from(("group_std", "none", "module_std")),
            "ddof": st.integers(0, 1),
            "min_spread": st.sampled_from((0.0, 0.3)),
            "flat": st.sampled_from(("drop", "keep")),
            "min_group": st.integers(1, 3),
            "small_groups": st.sampled_from(("exclude", "example_baseline")),
            "outage": st.sampled_from(("failure", "exclude")),
            "upstream_on_failure": st.sampled_from(("failure_score", "format", "exclude")),
            "truncated": st.sampled_from(("failure", "mask")),
            "staleness": st.integers(0, 2),
            "admit_concurrent": st.booleans(),
            "failure_score": st.sampled_from((0.0, -0.25)),
        }
    )


SETTINGS: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "derandomize": True,
    "suppress_health_check": list(HealthCheck),
}


def assert_equals_the_oracle(data: tuple[list[Row], list[Row]], recipe_: Any, **how: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = group_rows(Path(folder), *data, recipe_, **how)
    assert_same(found, oracles.group_rows(*data, POLICIES, recipe_))


@settings(max_examples=80, **SETTINGS)
@given(tables(), rules(), st.sampled_from(("sequence", "token", "module")), st.integers(0, 3))
def test_every_mode_matches_the_plain_version(data: Any, group: dict[str, Any], balance: str, seed: int) -> None:
    assert_equals_the_oracle(data, recipe(balance, seed, **group))


@settings(max_examples=25, **SETTINGS)
@given(tables(), rules(), st.sampled_from((("path",), ("temperature",), ("path", "finish_reason", "concurrent"))))
def test_key_columns_match_the_plain_version(data: Any, group: dict[str, Any], keys: tuple[str, ...]) -> None:
    assert_equals_the_oracle(data, recipe(key_columns=list(keys), **group))


@settings(max_examples=25, **SETTINGS)
@given(tables(), rules(), st.sampled_from(("sequence", "token")))
def test_trajectories_match_the_plain_version(data: Any, group: dict[str, Any], balance: str) -> None:
    assert_equals_the_oracle(data, recipe(balance, unit="trajectory", **{**group, "strict": False}))


@settings(max_examples=25, **SETTINGS)
@given(tables(), rules(), st.sampled_from(({"teacher": 0.5}, {"teacher:a": 0.25, "ingest": 0.5}, {"ingest:x": 0.0})))
def test_source_caps_match_the_plain_version(data: Any, group: dict[str, Any], caps: dict[str, float]) -> None:
    assert_equals_the_oracle(data, recipe(source_caps=caps, **group))


@settings(max_examples=25, **SETTINGS)
@given(tables(), rules(), st.sampled_from(({"reward": 1.0}, {"reward": 0.5, "p": 2.0}, {"p": -1.0})))
def test_credit_matches_the_plain_version(data: Any, group: dict[str, Any], mix: dict[str, float]) -> None:
    rollouts, calls = data
    for row in rollouts[:1]:
        row |= {"reward_parts": '{"p":0.75}', "status": "ok"}
    assert_equals_the_oracle((rollouts, calls), recipe(credit={"b": mix}, **group))


@settings(max_examples=25, **SETTINGS)
@given(tables(), rules(), st.integers(1, 12))
def test_ranges_of_any_size_match_the_plain_version(data: Any, group: dict[str, Any], limit: int) -> None:
    assert_equals_the_oracle(data, recipe(**group), limit=limit)
