"""Iterations of several steps: what each step is measured against, schedules over iterations, replayed rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from schemas.errors import ContractError
from schemas.parquet import read_frame, write_table
from schemas.recipe_training import TrainSection
from schemas.rollouts import INVOCATIONS
from stages.contract import Inputs
from stages.training.optimizer import rate_factor
from tests.oracle_loss import Example, log_probs
from tests.test_stages.loss_kit import FIXED, assert_step, exact, gradients
from tests.test_stages.train_kit import Call, LocalOut, artifact, as_previous, make_calls, run, write_artifacts


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def steps(out: LocalOut) -> pl.DataFrame:
    return pl.read_parquet(out.committed()["steps.parquet"])


def with_calls(root: Path, calls: list[Call], cache: Path, previous: LocalOut) -> Inputs:
    """Inputs of the next iteration over some calls, continuing from a finished stage."""
    return as_previous(previous, write_artifacts(root, calls, cache)[0], root / "previous")


@pytest.mark.parametrize("fields", [{"epsilon_low": 0.02, "epsilon_high": 0.28}, {"epsilon_high": 0.01}])
def test_every_step_is_clipped_against_the_policy_that_the_stage_began_with(
    cache: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    fields = {"beta": 0.0, **fields}
    several = FIXED | fields | {"examples_per_step": 2}
    calls = make_calls()
    inputs, base = write_artifacts(tmp_path / "all", calls, cache)
    _, begun = run(inputs, cache, tmp_path / "begun", **FIXED | {"learning_rate": 0.05})
    _, out = run(with_calls(tmp_path / "a", calls, cache, begun), cache, tmp_path / "two", 45, **several)
    plan = pl.read_parquet(out.committed()["batch_plan.parquet"])
    first = set(plan.filter(pl.col("step") == 0)["example_id"])
    last = [call for call in calls if call.example not in first]
    assert (len(first), len(last)) == (2, 4)
    # Where the other examples are not there, the stage ends with the adapter that the second step starts from.
    some = with_calls(tmp_path / "b", [call for call in calls if call.example in first], cache, begun)
    _, one = run(some, cache, tmp_path / "one", **several)
    assert steps(one).height == 1
    rows = [Example(c.prompt, c.completion, c.sampling, c.advantage) for c in last for _ in range(c.copies)]
    old = exact(base, begun.committed()["adapter/adapter_config.json"].parent)
    with torch.no_grad():
        for row in rows:
            row.old = log_probs(old, row)
    model = exact(base, one.committed()["adapter/adapter_config.json"].parent)
    assert_step(steps(out)["loss"][-1], gradients(out), model, rows, fields)
    assert steps(out)["kl_old"].to_list()[0] == pytest.approx(0.0, abs=1e-9)
    assert steps(out)["kl_old"][-1] > 1e-4
    assert steps(out)["clip_share"][-1] > 0


def test_a_schedule_goes_on_over_epochs_steps_and_iterations(cache: Path, tmp_path: Path) -> None:
    fields = {"schedule": "cosine", "total_steps": 8, "warmup_steps": 2, "examples_per_step": 2, "epochs": 2}
    inputs, _ = write_artifacts(tmp_path / "data", make_calls(), cache)
    _, first = run(inputs, cache, tmp_path / "1", **fields)
    _, second = run(as_previous(first, inputs, tmp_path / "p"), cache, tmp_path / "2", **fields)
    found = pl.concat([steps(first), steps(second)])
    assert found["step"].to_list() == list(range(8))
    section = TrainSection(learning_rate=1e-3, **fields)
    assert found["learning_rate"].to_list() == pytest.approx([1e-3 * rate_factor(section, step) for step in range(8)])


def test_replayed_rollouts_give_the_bytes_of_one_artifact_that_holds_them_all(cache: Path, tmp_path: Path) -> None:
    inputs, _ = write_artifacts(tmp_path / "data", make_calls(), cache)
    _, whole = run(inputs, cache, tmp_path / "whole")
    calls = read_frame(inputs["rollout"].file("invocations.parquet"), INVOCATIONS)
    ids = pl.col("rollout_id")
    own, older = ids > "r005", ids < "r003"
    parts = {"rollout": own, "rollout.back-1": ~own & ~older, "rollout.back-2": older}
    artifacts = dict(inputs.artifacts)
    for role, part in parts.items():
        (tmp_path / role).mkdir()
        write_table(calls.filter(part), tmp_path / role / "invocations.parquet", INVOCATIONS)
        artifacts[role] = artifact(tmp_path / role)
    _, split = run(Inputs(artifacts, inputs.params, inputs.root), cache, tmp_path / "split")
    for name, file in whole.committed().items():
        assert split.committed()[name].read_bytes() == file.read_bytes(), name
    left = {role: item for role, item in artifacts.items() if role != "rollout.back-2"}
    with pytest.raises(ContractError, match="every member has its invocation"):
        run(Inputs(left, inputs.params, inputs.root), cache, tmp_path / "lost")
