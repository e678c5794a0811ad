"""The logprobs stage: its numbers, what it is keyed by, its shards, and which policies a train stage needs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from schemas.errors import DataError
from stages import logprobs, train
from stages.contract import Inputs
from stages.engines.models import resolve_base
from stages.training.needs import Grouped, Needs, needs
from tests.oracle_loss import Example, log_probs
from tests.test_stages.train_kit import (
    Call,
    Killed,
    KillsOnce,
    LocalOut,
    as_previous,
    execution,
    make_calls,
    policies,
    recipe,
    run,
    score,
    write_artifacts,
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def calls() -> list[Call]:
    calls = make_calls()
    for index, call in enumerate(calls):
        call.temperature = 0.7 if index % 4 == 1 else 1.0
    return calls


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, cache: Path, calls: list[Call]) -> Inputs:
    """Continues from an adapter that differs from the base."""
    root = tmp_path_factory.mktemp("data")
    first, _ = write_artifacts(root, calls, cache)
    _, out = run(first, cache, root / "first", learning_rate=0.05)
    return as_previous(out, first, root / "previous")


@pytest.mark.parametrize("which", ["base", "adapter"])
def test_each_invocation_has_the_log_probabilities_of_a_plain_forward_pass(
    inputs: Inputs, cache: Path, calls: list[Call], tmp_path: Path, which: str
) -> None:
    policy = policies(inputs)[0 if which == "base" else -1]
    metrics, artifact = score(inputs, recipe(adapter={"r": 4, "alpha": 8, "dropout": 0.5}), policy, cache, tmp_path, 45)
    rows = pl.read_parquet(artifact.file("logprobs.parquet")).to_dicts()
    assert [row["rollout_id"] for row in rows] == [f"r{index:03d}" for index in range(len(calls))]
    assert {row["policy"] for row in rows} == {policy}
    assert (metrics["rows"], metrics["path"]) == (len(calls), "packed"), "dropout is no matter where nothing is trained"
    path = resolve_base("tiny-random", tmp_path, cache).path
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, attn_implementation="eager")
    if which == "adapter":
        model = PeftModel.from_pretrained(model, inputs["previous"].file("adapter")).double()
    for row, call in zip(rows, calls, strict=True):
        example = Example(call.prompt, call.completion, call.sampling, 0.0, call.temperature)
        with torch.no_grad():
            assert row["logprobs"] == pytest.approx(log_probs(model.eval(), example).tolist(), abs=2e-5)


def test_a_killed_stage_makes_no_shard_twice_and_ends_with_the_same_bytes(
    inputs: Inputs, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "SHARD_TOKENS", 40)
    policy = policies(inputs)[-1]
    whole = LocalOut(tmp_path / "whole")
    score(inputs, recipe(), policy, cache, tmp_path, out=whole)
    shards = len(whole.committed("shards/"))
    assert shards > 2
    assert whole.dropped == ["shards/"]

    killed, tries = LocalOut(tmp_path / "killed", KillsOnce()), 0
    while "logprobs.parquet" not in killed.committed():
        tries += 1
        with contextlib.suppress(Killed):
            score(inputs, recipe(), policy, cache, tmp_path, out=killed)
    assert tries == shards + 1
    for name, path in whole.committed().items():
        assert killed.committed()[name].read_bytes() == path.read_bytes(), name


def test_rows_of_other_policies_are_not_scored_for_a_behaviour_policy(
    cache: Path, calls: list[Call], tmp_path: Path
) -> None:
    mixed, _ = write_artifacts(tmp_path / "data", calls, cache)
    file = mixed["group"].file("groups.parquet")
    policy = policies(mixed)[0]
    own = pl.col("rollout_id").is_in(["r001", "r004"])
    pl.read_parquet(file).with_columns(
        policy=pl.when(own).then(pl.lit(policy)).otherwise(pl.lit("another"))
    ).write_parquet(file)
    metrics, artifact = score(mixed, recipe(), policy, cache, tmp_path / "own", rows="own")
    assert pl.read_parquet(artifact.file("logprobs.parquet"))["rollout_id"].to_list() == ["r001", "r004"]
    assert metrics["rows"] == 2


def test_siblings_that_differ_in_rate_beta_or_loss_share_their_scores() -> None:
    one = logprobs.recipe_slice(recipe())
    other = {"learning_rate": 0.5, "beta": 0.3, "epochs": 3, "ess_floor": 0.2, "rho": "none", "adapter": {"r": 8}}
    assert logprobs.recipe_slice(recipe(**other)) == one
    assert logprobs.recipe_slice(recipe(precision="bfloat16")) != one


def test_training_without_its_scores_says_what_to_run(inputs: Inputs, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"12 invocations lack the log-probabilities of policy.*stage logprobs RECIPE"):
        train.run(inputs, recipe(epochs=2), execution(cache), LocalOut(tmp_path))


GROUPED = Grouped(examples=4, policies=("older", "pi_0", "teacher"), moving=True)
CASES: list[tuple[dict[str, Any], bool, Grouped | None, Needs]] = [
    ({"beta": 0.0}, False, GROUPED, Needs()),
    ({"beta": 0.1}, True, GROUPED, Needs()),
    ({"beta": 0.1}, False, GROUPED, Needs(reference=True)),
    ({"beta": 0.1, "reference": "previous"}, False, GROUPED, Needs()),
    ({"beta": 0.1, "epochs": 2}, True, GROUPED, Needs(old=True)),
    ({"beta": 0.1, "examples_per_step": 3}, False, GROUPED, Needs(old=True, reference=True)),
    ({"beta": 0.0, "adapter": {"dropout": 0.1}}, False, GROUPED, Needs(old=True)),
    ({"beta": 0.1, "epochs": 2}, False, Grouped(0, (), moving=False), Needs()),
    ({"beta": 0.0, "epochs": 2}, False, Grouped(4, (), moving=False), Needs()),
    ({"beta": 0.1}, False, Grouped(4, (), moving=False), Needs(reference=True)),
    ({"beta": 0.0, "ess_floor": 0.1}, False, GROUPED, Needs(behaviours=("older",))),
    ({"beta": 0.0, "ess_floor": 0.1, "rho": "none"}, False, GROUPED, Needs()),
    ({"beta": 0.1, "rollout": {"examples": 9}}, False, None, Needs(old=True, reference=True)),
]


@pytest.mark.parametrize(("fields", "fresh", "grouped", "expected"), CASES)
def test_only_what_the_forward_pass_of_the_only_step_does_not_give_is_scored(
    fields: dict[str, Any], fresh: bool, grouped: Grouped | None, expected: Needs
) -> None:
    assert needs(recipe(**fields), grouped, policy="pi_0", fresh=fresh, archived={"older", "pi_0"}) == expected
