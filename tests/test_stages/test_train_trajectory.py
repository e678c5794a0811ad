"""Whole rollouts as members: one step of the stage against a loss written by hand over calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.oracle_loss import log_rho_of, members_of
from tests.test_stages.loss_kit import (
    Setting,
    assert_step,
    exact,
    make_setting,
    oracle_rows,
    second_step,
    trajectory_zoo,
)

UNIT = {"group": {"unit": "trajectory"}}


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """Weights as a table of `balance = "sequence"` has them."""
    return make_setting(tmp_path_factory.mktemp("calls"), trajectory_zoo(), **UNIT)


@pytest.fixture(scope="module")
def by_token(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """Weights as a table of `balance = "token"` has them."""
    fields = UNIT | {"loss": "cispo", "balance": "token"}
    return make_setting(tmp_path_factory.mktemp("tokens"), trajectory_zoo("token"), **fields)


OBJECTIVES: dict[str, dict[str, Any]] = {
    "clipped": {"beta": 0.0, "epsilon_low": 0.02, "epsilon_high": 0.05},
    "KL to the base, rho masked": {"beta": 0.2, "rho": "mask", "rho_max": 1.5},
    "KL to the previous adapter": {"beta": 0.2, "reference": "previous"},
    "rho of the rollout": {"beta": 0.0, "rho_level": "sequence", "rho_max": 1.2},
    "rho of the rollout, masked": {"beta": 0.1, "rho": "mask", "rho_level": "sequence", "rho_max": 4.0},
    "ratio of the rollout": {"beta": 0.1, "ratio_level": "sequence", "epsilon_low": 0.004, "epsilon_high": 0.01},
    "ratio and rho of the rollout": {"beta": 0.0, "ratio_level": "sequence", "rho_level": "sequence"},
    "cispo": {"loss": "cispo", "beta": 0.0, "epsilon_high": 0.02},
    "cispo with KL": {"loss": "cispo", "beta": 0.1, "rho_level": "sequence"},
    "cispo, ratio of the rollout": {"loss": "cispo", "ratio_level": "sequence", "epsilon_high": 0.005},
    "dapo": {"loss": "dapo", "beta": 0.1, "epsilon_high": 0.01},
    "bnpo": {"loss": "bnpo", "beta": 0.1},
    "sapo": {"loss": "sapo", "beta": 0.1},
    "sapo, ratio of the rollout": {"loss": "sapo", "ratio_level": "sequence"},
}


def assert_equals_the_oracle(setting: Setting, folder: Path, tokens: int, fields: dict[str, Any]) -> dict[str, Any]:
    step, got, adapter = second_step(setting, folder, tokens, UNIT | fields)
    rows = oracle_rows(setting, trajectory=True)
    if fields.get("reference") == "previous":
        for row in rows:
            row.reference = row.old
    assert_step(step["loss"], got, exact(setting.base, adapter), rows, UNIT | fields)
    return step


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_over_rollouts_equals_the_hand_written_loss_in_uneven_micro_batches(
    setting: Setting, tmp_path: Path, name: str
) -> None:
    assert_equals_the_oracle(setting, tmp_path, 90, OBJECTIVES[name])


@pytest.mark.parametrize("name", ["cispo", "cispo with KL", "dapo", "bnpo"])
def test_weights_of_tokens_mean_the_same_step(by_token: Setting, tmp_path: Path, name: str) -> None:
    assert_equals_the_oracle(by_token, tmp_path, 90, OBJECTIVES[name] | {"balance": "token"})


@pytest.mark.parametrize("tokens", [1, 100_000])
def test_the_plain_path_gives_the_same_step(setting: Setting, tmp_path: Path, tokens: int) -> None:
    assert_equals_the_oracle(
        setting, tmp_path, tokens, OBJECTIVES["ratio and rho of the rollout"] | {"prefix_sharing": False}
    )


def test_effective_size_reward_and_count_are_of_rollouts(setting: Setting, tmp_path: Path) -> None:
    step = assert_equals_the_oracle(setting, tmp_path, 100_000, OBJECTIVES["clipped"])
    members = members_of(oracle_rows(setting, trajectory=True))
    rho = torch.stack([log_rho_of([row.old for row in calls if row.old is not None], calls) for calls in members]).exp()
    assert step["members"] == len(members) == 10
    assert step["ess"] == pytest.approx(float(rho.sum() ** 2 / (len(rho) * (rho**2).sum())), rel=1e-3)
    assert step["advantage_abs"] == pytest.approx(sum(abs(calls[0].advantage) for calls in members) / len(members))
