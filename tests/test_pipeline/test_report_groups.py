"""What the report says of the groups that moved the weights."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from pipeline.reporting.iterations import outsized
from tests.test_stages.group_kit import call, group_rows, one_module, recipe


def share(folder: Path, rewards: list[float | None], *, failed: bool) -> float | None:
    """The share of the pull of failed attempts that outweigh their group: of one group, whose first rollout retried."""
    rollouts, calls = one_module(rewards)
    if failed:
        first = {**calls[0], "parse_status": "failed"}
        calls[0] = call(calls[0]["rollout_id"], 1, attempt=1)
        calls.append(first)
    groups, _ = group_rows(folder, rollouts, calls, recipe())
    return outsized(pl.DataFrame(groups))


@pytest.mark.parametrize("rewards", [[0.0, 1.0, 0.0, 0.0], [0.0] * 15 + [1.0], [0.8, 0.8001]])
def test_no_member_that_counts_in_the_deviation_is_outsized(tmp_path: Path, rewards: list[float | None]):
    assert share(tmp_path, rewards, failed=False) == 0


def test_a_failed_attempt_in_a_group_of_plain_differences_is_not_outsized(tmp_path: Path):
    assert share(tmp_path, [0.0, 1.0, 0.0, 1.0], failed=True) == 0


def test_a_failed_attempt_in_a_group_that_is_nearly_flat_has_most_of_the_pull(tmp_path: Path):
    found = share(tmp_path, [0.8, 0.801, 0.8, 0.801], failed=True)
    assert found is not None
    assert found > 0.99


def test_where_nothing_pulls_there_is_no_share(tmp_path: Path):
    groups, _ = group_rows(tmp_path, *one_module([0.0, 1.0]), recipe())
    still = pl.DataFrame([{**row, "advantage": 0.0} for row in groups])
    assert outsized(still) is None
