"""Selection is optimal: brute force over every subset, and over every multiset of copies."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.test_stages.group_kit import Row, call, group_rows, recipe, rollout

REWARDS = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.5, 1.0, -1.0, 1 / 3, 3.0]), min_size=2, max_size=10)
SETTINGS = settings(
    max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def selected(rewards: list[float], k: int, mode: str = "max_variance") -> list[Row]:
    rows = [rollout("e", i, value) for i, value in enumerate(rewards)]
    calls = [call(row["rollout_id"], 0) for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        return group_rows(Path(folder), rows, calls, recipe(select=mode, k=k, flat="keep"))[0]


def variance(values: tuple[float, ...] | list[float]) -> Fraction:
    exact = [Fraction(round(value * 10**6), 10**6) for value in values]
    mean = sum(exact) / len(exact)
    return sum(((value - mean) ** 2 for value in exact), Fraction(0)) / len(exact)


@SETTINGS
@given(REWARDS, st.integers(1, 10))
def test_no_other_subset_has_greater_variance(rewards: list[float], k: int) -> None:
    rows = selected(rewards, min(k, len(rewards)))
    values = [row["reward"] for row in rows]
    assert len(rows) == len({row["rollout_id"] for row in rows}) == min(k, len(rewards))
    assert variance(values) == max(variance(subset) for subset in itertools.combinations(rewards, len(values)))


@SETTINGS
@given(REWARDS.filter(lambda values: len(values) <= 6), st.integers(1, 3))
def test_no_other_copies_have_greater_variance(rewards: list[float], extra: int) -> None:
    rows = selected(rewards, len(rewards) + extra)
    values = [row["reward"] for row in rows]
    assert len(values) == len(rewards) + extra
    assert {row["rollout_id"] for row in rows if row["copy_kind"] == "none"} == {
        f"e-{i:02d}" for i in range(len(rewards))
    }
    added = itertools.combinations_with_replacement(rewards, extra)
    assert variance(values) == max(variance([*rewards, *more]) for more in added)


def test_copies_go_round_the_members_of_their_reward() -> None:
    rows = selected([0.0, 0.0, 1.0, 0.5], 9)
    assert Counter(row["rollout_id"] for row in rows) == {"e-00": 2, "e-01": 2, "e-02": 4, "e-03": 1}
    assert [row["copy_kind"] for row in rows if row["rollout_id"] == "e-02"] == ["none", "select", "select", "select"]


def test_equal_variance_keeps_more_high_rewards() -> None:
    assert [row["reward"] for row in selected([0.0, 0.0, 1.0, 1.0], 3)] == [0.0, 1.0, 1.0]


def test_even_keeps_both_ends() -> None:
    assert [row["reward"] for row in selected([5.0, 1.0, 4.0, 2.0, 3.0], 3, "even")] == [5.0, 1.0, 3.0]


@pytest.mark.parametrize("k", [1, 3, 5, 8])
def test_random_keeps_k_members_and_every_one_before_it_repeats(k: int) -> None:
    rows = selected([0.0, 1.0, 2.0, 3.0, 4.0], k, "random")
    assert len(rows) == k
    assert len({row["rollout_id"] for row in rows}) == min(k, 5)


def test_ties_prefer_originals_over_copies(tmp_path: Path) -> None:
    rows = [rollout("e", i, 1.0 if i else 0.0) for i in range(4)]
    lengths = (2, 1, 2, 2)  # at position 1, rollout 1 is a copy
    calls = [call(row["rollout_id"], p, "m", p) for row, n in zip(rows, lengths, strict=True) for p in range(n)]
    groups, _ = group_rows(tmp_path, rows, calls, recipe(k=3))
    assert [row["rollout_id"] for row in groups if row["invocation_index"] == 1] == ["e-00", "e-02", "e-03"]
