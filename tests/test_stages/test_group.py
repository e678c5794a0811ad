"""The group stage as a whole, on small tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_stages.group_tables import call, group_rows, recipe, rollout


def test_a_one_module_program_gets_trls_own_advantages(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from trl.trainer.utils import nanstd

    rewards = [[0.0, 1.0, 1.0, 0.25], [0.5, -1.0, 3.0, 0.125]]
    rows = [rollout(f"e{e}", i, value) for e, values in enumerate(rewards) for i, value in enumerate(values)]
    groups, excluded = group_rows(tmp_path, rows, [call(row["rollout_id"], 0) for row in rows], recipe(k=4))

    expected = []
    for values in rewards:
        tensor = torch.tensor(values, dtype=torch.float64)
        expected += ((tensor - tensor.mean()) / (nanstd(tensor, dim=0) + 1e-4)).tolist()
    assert [row["advantage"] for row in groups] == pytest.approx(expected, rel=1e-6)
    assert len({row["group_id"] for row in groups}) == 2
    assert not excluded
