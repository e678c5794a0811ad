"""The group stage as a whole, on small tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.parquet import write_table
from schemas.recipe import Recipe
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from stages.grouping.job import group_chunk
from stages.grouping.load import load_chunk


def recipe(**group: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "t",
            "model": {"base": "tiny-random"},
            "program": {"factory": "a:b", "metric": "a:c"},
            "examples": {"path": "x.parquet", "inputs": ["q"]},
            "group": group,
        }
    )


def rollout(example: str, index: int, reward: float | None, **fields: Any) -> dict[str, Any]:
    row = {
        "example_id": example,
        "rollout_index": index,
        "rollout_id": f"{example}-{index:02d}",
        "iteration": 0,
        "source": "student",
        "policy": "p0",
        "reward": reward,
        "status": "ok",
    }
    return {**row, **fields}


def call(rollout_id: str, call_index: int, module: str = "m", position: int = 0, **fields: Any) -> dict[str, Any]:
    row = {
        "rollout_id": rollout_id,
        "call_index": call_index,
        "module": module,
        "invocation_index": position,
        "attempt": 0,
        "lm": "student",
        "messages": "[]",
        "completion_ids": [1, 2],
        "sampling_logprobs": [-0.1, -0.2],
        "finish_reason": "stop",
        "parse_status": "ok",
        "trainable": True,
        "concurrent": False,
        "fidelity": "exact",
    }
    return {**row, **fields}


def test_a_one_module_program_gets_trls_own_advantages(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from trl.trainer.utils import nanstd

    rewards = [[0.0, 1.0, 1.0, 0.25], [0.5, -1.0, 3.0, 0.125]]
    rows = [rollout(f"e{e}", i, value) for e, values in enumerate(rewards) for i, value in enumerate(values)]
    write_table(rows, tmp_path / "r.parquet", ROLLOUTS)
    write_table([call(row["rollout_id"], 0) for row in rows], tmp_path / "i.parquet", INVOCATIONS)
    result = group_chunk(load_chunk([tmp_path / "r.parquet"], [tmp_path / "i.parquet"]), recipe(k=4))

    expected = []
    for values in rewards:
        tensor = torch.tensor(values, dtype=torch.float64)
        expected += ((tensor - tensor.mean()) / (nanstd(tensor, dim=0) + 1e-4)).tolist()
    assert result.groups.get_column("advantage").to_list() == pytest.approx(expected, rel=1e-6)
    assert result.groups.get_column("group_id").n_unique() == 2
