"""One optimizer step against a loss written by hand in float64: value and gradient, through the whole stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from tests.oracle_loss import log_probs
from tests.test_stages.loss_kit import (
    FIXED,
    Setting,
    assert_step,
    call_zoo,
    exact,
    gradients,
    make_setting,
    oracle_rows,
    second_step,
)
from tests.test_stages.train_kit import run


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return make_setting(tmp_path_factory.mktemp("loss"), call_zoo())


OBJECTIVES: dict[str, dict[str, Any]] = {
    "clipped": {"beta": 0.0, "epsilon_low": 0.02, "epsilon_high": 0.05},
    "KL to the base, rho masked": {"beta": 0.2, "rho": "mask", "rho_max": 1.5},
    "KL to the previous adapter": {"beta": 0.2, "reference": "previous"},
    "rho of the sequence": {"beta": 0.0, "rho_level": "sequence", "rho_max": 1.2},
    "rho of the sequence, masked": {"beta": 0.0, "rho": "mask", "rho_level": "sequence", "rho_max": 4.0},
    "no rho": {"beta": 0.1, "rho": "none"},
    "ratio of the sequence": {"beta": 0.1, "ratio_level": "sequence", "epsilon_low": 0.01},
    "ratio of the sequence, modules count equally": {"beta": 0.0, "ratio_level": "sequence", "balance": "module"},
    "modules count equally": {"beta": 0.1, "balance": "module"},
    "tokens count equally": {"beta": 0.1, "balance": "token"},
    "bnpo": {"loss": "bnpo", "balance": "token", "beta": 0.1},
    "dr_grpo": {"loss": "dr_grpo", "balance": "token", "beta": 0.1},
    "dapo": {"loss": "dapo", "balance": "token", "beta": 0.1, "epsilon_high": 0.01},
    "cispo": {"loss": "cispo", "balance": "token", "beta": 0.0, "epsilon_high": 0.02},
    "sapo": {"loss": "sapo", "beta": 0.1},
    "sapo, ratio of the sequence": {"loss": "sapo", "beta": 0.0, "ratio_level": "sequence"},
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_equals_the_hand_written_loss_in_uneven_packed_micro_batches(
    setting: Setting, tmp_path: Path, name: str
) -> None:
    fields = OBJECTIVES[name]
    step, got, adapter = second_step(setting, tmp_path, 45, fields)
    rows = oracle_rows(setting)
    if fields.get("reference") == "previous":
        for row in rows:
            row.reference = row.old
    assert_step(step["loss"], got, exact(setting.base, adapter), rows, fields)


@pytest.mark.parametrize("tokens", [90, 100_000])
def test_the_plain_path_gives_the_same_step(setting: Setting, tmp_path: Path, tokens: int) -> None:
    fields = OBJECTIVES["KL to the base, rho masked"]
    step, got, adapter = second_step(setting, tmp_path, tokens, fields | {"prefix_sharing": False})
    assert_step(step["loss"], got, exact(setting.base, adapter), oracle_rows(setting), fields)


def clipped_sides(setting: Setting, folder: Path) -> set[str]:
    """On which sides tokens of the second step leave the interval, against the advantage's pull."""
    _, out = run(setting.inputs, setting.cache, folder, **FIXED | OBJECTIVES["clipped"])
    model, sides = exact(setting.base, out.committed()["adapter/adapter_config.json"].parent), set()
    for row in oracle_rows(setting):
        with torch.no_grad():
            w = torch.exp(log_probs(model, row) - row.old)
        sides |= {"low"} if row.advantage < 0 and w.min() < 0.98 else set()
        sides |= {"high"} if row.advantage > 0 and w.max() > 1.05 else set()
    return sides


def test_the_clipped_case_does_clip_and_a_step_is_cut_into_micro_batches(setting: Setting, tmp_path: Path) -> None:
    fields = FIXED | OBJECTIVES["clipped"] | {"epochs": 2}
    _, cut = run(setting.inputs, setting.cache, tmp_path / "cut", 45, **fields)
    _, whole = run(setting.inputs, setting.cache, tmp_path / "whole", 4096, **fields)
    small, large = (pl.read_parquet(out.committed()["steps.parquet"]) for out in (cut, whole))
    assert small["clip_share"][-1] > 0.1
    assert clipped_sides(setting, tmp_path / "sides") == {"low", "high"}
    assert small["clip_share"][0] == 0.0
    assert small["forward_tokens"][0] > large["forward_tokens"][0], "one micro-batch computes each prefix once"
    assert large["forward_tokens"][0] < large["row_tokens"][0] / 3
    for name in ("loss", "kl_old", "entropy", "clip_share", "ess", "grad_norm"):
        assert small[name].to_list() == pytest.approx(large[name].to_list(), rel=1e-3, abs=1e-6), name


def test_weights_count_in_numerator_and_denominator_and_a_weight_of_zero_in_neither(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    calls = call_zoo()
    for index, call in enumerate(calls):
        call.weight = 0.5 + index % 3
        call.advantage = 0.0 if call.group == "g1" else call.advantage  # a flat group that was kept counts below
    calls[3].weight = 0.0
    setting = make_setting(tmp_path_factory.mktemp("weights"), calls)
    rows = [row for row in oracle_rows(setting) if row.weight > 0]
    for name, fields in {"sequence": {"beta": 0.0}, "token": {"beta": 0.2, "loss": "dapo", "balance": "token"}}.items():
        _, out = run(setting.inputs, setting.cache, tmp_path / name, 45, **FIXED | fields)
        assert out.excluded == {"zero_weight": 1}
        loss = pl.read_parquet(out.committed()["steps.parquet"])["loss"][0]
        assert_step(loss, gradients(out), exact(setting.base, setting.previous), rows, fields)


def test_rho_of_zero_gives_exactly_zero_policy_gradient(setting: Setting, tmp_path: Path) -> None:
    fields = FIXED | {"beta": 0.0, "rho": "mask", "rho_max": 1e-6}
    metrics, out = run(setting.inputs, setting.cache, tmp_path / "o", **fields)
    assert (metrics["trained"], metrics["reason"]) == (False, "no weight moved")
    assert not out.committed("adapter/")
