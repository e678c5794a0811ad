"""One optimizer step against a loss written by hand in float64: value and gradient, through the whole stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.oracle_loss import Example, step_loss
from tests.test_stages.loss_kit import (
    FIXED,
    Setting,
    assert_step,
    call_zoo,
    exact,
    make_setting,
    oracle_options,
    oracle_rows,
    second_step,
)
from tests.test_stages.train_kit import make_calls, run, write_artifacts


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
    "modules count equally": {"beta": 0.1, "balance": "module"},
    "tokens count equally": {"beta": 0.1, "balance": "token"},
    "bnpo": {"loss": "bnpo", "balance": "token", "beta": 0.1},
    "dr_grpo": {"loss": "dr_grpo", "balance": "token", "beta": 0.1},
    "dapo": {"loss": "dapo", "balance": "token", "beta": 0.1, "epsilon_high": 0.01},
    "cispo": {"loss": "cispo", "balance": "token", "beta": 0.0, "epsilon_high": 0.02},
    "sapo": {"loss": "sapo", "beta": 0.1},
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


def test_the_clipped_case_does_clip_and_a_step_is_cut_into_micro_batches(setting: Setting, tmp_path: Path) -> None:
    fields = FIXED | OBJECTIVES["clipped"] | {"epochs": 2}
    _, cut = run(setting.inputs, setting.cache, tmp_path / "cut", 45, **fields)
    _, whole = run(setting.inputs, setting.cache, tmp_path / "whole", 4096, **fields)
    small, large = (pl.read_parquet(out.committed()["steps.parquet"]) for out in (cut, whole))
    assert small["clip_share"][-1] > 0.1
    assert small["clip_share"][0] == 0.0
    assert small["forward_tokens"][0] > large["forward_tokens"][0], "one micro-batch computes each prefix once"
    assert large["forward_tokens"][0] < large["row_tokens"][0] / 3
    for name in ("loss", "kl_old", "entropy", "clip_share", "ess", "grad_norm"):
        assert small[name].to_list() == pytest.approx(large[name].to_list(), rel=1e-3, abs=1e-6), name


def test_member_weights_count_in_numerator_and_denominator(tmp_path: Path) -> None:
    calls = make_calls(seed=5, examples=2)
    for index, call in enumerate(calls):
        call.weight = 0.5 + index % 3
    inputs, base = write_artifacts(tmp_path, calls, tmp_path / "cache")
    fields = {"beta": 0.0, "rho_max": 1e6}
    _, out = run(inputs, tmp_path / "cache", tmp_path / "o", 45, **FIXED | fields)
    rows = [
        Example(c.prompt, c.completion, c.sampling, c.advantage, weight=c.weight)
        for c in calls
        for _ in range(c.copies)
    ]
    expected = step_loss(exact(base, None), rows, **oracle_options(fields))
    assert pl.read_parquet(out.committed()["steps.parquet"])["loss"][0] == pytest.approx(expected.item(), abs=2e-5)


def test_rho_of_zero_gives_exactly_zero_policy_gradient(setting: Setting, tmp_path: Path) -> None:
    fields = FIXED | {"beta": 0.0, "rho": "mask", "rho_max": 1e-6}
    metrics, out = run(setting.inputs, setting.cache, tmp_path / "o", **fields)
    assert (metrics["trained"], metrics["reason"]) == (False, "no weight moved")
    assert not out.committed("adapter/")
