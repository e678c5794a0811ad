"""The group stage and the train stage together: what is left out moves nothing, and what a unit is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from schemas.errors import ContractError
from stages.contract import Inputs
from tests.test_stages import group_kit
from tests.test_stages.train_kit import EOS, VOCABULARY, LocalOut, recipe, run, write_artifacts

Rows = list[dict[str, Any]]
REWARDS = {"e0": [0.0, 1.0, 0.25, 0.5], "e1": [1.0, 0.0, 0.75, 0.0], "e2": [0.5, 0.5, 0.5, 0.5]}


def sampled(examples: list[str], calls_of: int = 1) -> tuple[Rows, Rows]:
    """Rollouts of some examples with `calls_of` calls each, and their calls with tokens; e2 is flat."""
    rollouts, calls = [], []
    for example in examples:
        rng = np.random.default_rng(int(example[1:]))
        prompt = rng.integers(3, VOCABULARY, 9).tolist()
        for index, reward in enumerate(REWARDS[example]):
            rollouts.append(group_kit.rollout(example, index, reward))
            for at in range(calls_of):
                length = int(rng.integers(1, 6))
                tokens = {
                    "prompt_ids": [*prompt, at + 3],
                    "completion_ids": [*rng.integers(60, 64, length - 1).tolist(), EOS],
                    "sampling_logprobs": (-4.4 + rng.normal(0, 0.4, length)).tolist(),
                    "logprob_kind": "processed",
                }
                calls.append(group_kit.call(rollouts[-1]["rollout_id"], at, "ab"[at % 2], at // 2, **tokens))
    return rollouts, calls


def grouped(root: Path, cache: Path, data: tuple[Rows, Rows], **fields: Any) -> Inputs:
    """Inputs of the train stage with the groups that the group stage makes."""
    inputs, _ = write_artifacts(root, [], cache)
    policy = pl.read_parquet(inputs["base"].file("policies.parquet"))["policy"][0]
    source = group_kit.rollout_artifact(root / "source", [row | {"policy": policy} for row in data[0]], data[1])
    artifacts = {"rollout": source, "policies": group_kit.artifact(root / "base", "base")}
    _, out = group_kit.run_stage(root, artifacts, recipe(**fields))
    shutil.copyfile(out.shards["groups.parquet"], inputs["group"].path / "groups.parquet")
    return Inputs({**inputs.artifacts, "rollout": source}, {"iteration": 0}, root)


def trained(root: Path, cache: Path, data: tuple[Rows, Rows], **fields: Any) -> tuple[dict[str, Any], LocalOut]:
    """Both stages."""
    return run(grouped(root, cache, data, **fields), cache, root / "out", 60, **fields)


def moved(out: LocalOut) -> dict[str, bytes]:
    """What training decided, byte for byte: weights, moments and figures."""
    names = ("adapter/adapter_model.safetensors", "optimizer.safetensors", "steps.parquet")
    return {name: out.committed()[name].read_bytes() for name in names}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


TWO_STEPS = {"epochs": 2, "beta": 0.1, "learning_rate": 0.02}


@pytest.mark.parametrize(
    "fields",
    [
        {"epsilon_low": 0.02},
        {"ratio_level": "sequence", "rho_level": "sequence"},
        {"loss": "sapo", "rho": "mask"},
    ],
    ids=["clipped", "ratio of the sequence", "sapo"],
)
def test_with_one_call_a_rollout_both_units_train_the_same_adapter_byte_for_byte(
    cache: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    data = sampled(["e0", "e1"])
    both = [
        trained(tmp_path / unit, cache, data, **TWO_STEPS, **fields, group={"unit": unit, "k": 4})[1]
        for unit in ("invocation", "trajectory")
    ]
    assert moved(both[0]) == moved(both[1])


def test_with_several_calls_a_rollout_the_units_differ(cache: Path, tmp_path: Path) -> None:
    data = sampled(["e0", "e1"], calls_of=3)
    for unit, members in (("invocation", 24), ("trajectory", 8)):
        metrics, out = trained(tmp_path / unit, cache, data, **TWO_STEPS, group={"unit": unit, "k": 4})
        assert metrics["members"] == members
        assert pl.read_parquet(out.committed()["steps.parquet"])["members"].to_list() == [members] * 2
    assert moved(LocalOut(tmp_path / "invocation/out")) != moved(LocalOut(tmp_path / "trajectory/out"))


@pytest.mark.parametrize("unit", ["invocation", "trajectory"])
def test_a_flat_group_that_is_dropped_moves_nothing_with_a_kl_term_too(cache: Path, tmp_path: Path, unit: str) -> None:
    group = {"unit": unit, "k": 4}
    _, without = trained(tmp_path / "without", cache, sampled(["e0", "e1"]), **TWO_STEPS, group=group)
    _, beside = trained(tmp_path / "beside", cache, sampled(["e0", "e1", "e2"]), **TWO_STEPS, group=group)
    assert moved(beside) == moved(without)
    keep = group | {"flat": "keep"}
    _, kept = trained(tmp_path / "kept", cache, sampled(["e0", "e1", "e2"]), **TWO_STEPS, group=keep)
    assert moved(kept) != moved(without)


@pytest.mark.parametrize("unit", ["invocation", "trajectory"])
def test_a_truncated_completion_that_is_masked_is_in_no_sum(cache: Path, tmp_path: Path, unit: str) -> None:
    rollouts, calls = sampled(["e0", "e1"])
    calls[2]["finish_reason"] = "length"
    group = {"unit": unit, "select": "all", "truncated": "mask"}
    _, masked = trained(tmp_path / "masked", cache, (rollouts, calls), **TWO_STEPS, group=group)
    absent = [*rollouts[:2], *rollouts[3:]], [*calls[:2], *calls[3:]]
    _, without = trained(tmp_path / "without", cache, absent, **TWO_STEPS, group=group)
    assert moved(masked) == moved(without)


def test_a_table_of_trajectories_with_the_weights_of_another_balance_is_refused(cache: Path, tmp_path: Path) -> None:
    fields = {"loss": "cispo", "group": {"unit": "trajectory", "k": 4}}
    inputs = grouped(tmp_path, cache, sampled(["e0"], calls_of=3), balance="token", **fields)
    assert run(inputs, cache, tmp_path / "fits", balance="token", **fields)[0]["trained"]
    with pytest.raises(ContractError, match=r"tokens of a trajectory weigh the same \(train\.balance = 'sequence'\)"):
        run(inputs, cache, tmp_path / "o", balance="sequence", **fields)
