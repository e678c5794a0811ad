"""The train stage as a job: its files, resuming, continuing, ending early, and what it refuses."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from schemas.errors import ContractError, DataError, RecipeError, StageError
from schemas.policies import policy_digest
from stages.contract import Inputs
from stages.engines.models import adapter_digest, check_adapter, resolve_base
from tests.test_stages.train_kit import (
    Killed,
    KillsOnce,
    LocalOut,
    as_previous,
    make_calls,
    recipe,
    run,
    write_artifacts,
)

FILES = [
    "adapter/adapter_config.json",
    "adapter/adapter_model.safetensors",
    "adapter/base.json",
    "ages.parquet",
    "batch_plan.parquet",
    "modules.parquet",
    "optimizer.json",
    "optimizer.safetensors",
    "policies.parquet",
    "steps.parquet",
    "trained.parquet",
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Inputs:
    return write_artifacts(tmp_path_factory.mktemp("data"), make_calls(), cache)[0]


def contents(out: LocalOut) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in sorted(out.committed().items())}


def test_the_artifact_is_an_adapter_that_peft_loads_and_a_policy_that_names_its_base(
    inputs: Inputs, cache: Path, tmp_path: Path
) -> None:
    metrics, out = run(inputs, cache, tmp_path, epochs=2)
    assert sorted(out.committed()) == FILES
    folder = out.committed()["adapter/base.json"].parent
    base = resolve_base("tiny-random", tmp_path, cache)
    check_adapter(folder, base)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base.path), folder)
    assert any(float(value.abs().max()) > 0 for name, value in model.named_parameters() if "lora_B" in name)
    policies = pl.read_parquet(out.committed()["policies.parquet"]).sort("iteration").to_dicts()
    adapters = {"*": adapter_digest(folder)}
    assert [row["policy"] for row in policies] == [policy_digest(base.digest, {}), policy_digest(base.digest, adapters)]
    assert policies[1]["parent"] == policies[0]["policy"]
    assert policies[1]["iteration"] == 1
    assert metrics["policy"] == policies[1]["policy"]
    assert str(cache) not in folder.joinpath("adapter_config.json").read_text()


def test_a_second_run_writes_the_same_bytes(inputs: Inputs, cache: Path, tmp_path: Path) -> None:
    first, second = (run(inputs, cache, tmp_path / name, epochs=2)[1] for name in "ab")
    assert contents(first) == contents(second)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"precision": "bfloat16"}, marks=pytest.mark.slow),
        {"adapter": {"r": 4, "alpha": 8, "dropout": 0.2}},
    ],
    ids=["float32", "bfloat16", "dropout"],
)
def test_killed_after_any_step_and_started_again_it_ends_with_the_same_bytes(
    inputs: Inputs, cache: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    fields = {"epochs": 2, "examples_per_step": 1, "beta": 0.1} | fields
    _, undisturbed = run(inputs, cache, tmp_path / "whole", 60, **fields)

    kill = KillsOnce()
    killed = LocalOut(tmp_path / "killed", kill)
    for _ in range(20):
        with contextlib.suppress(Killed):
            run(inputs, cache, tmp_path, 60, killed, **fields)
            break
    assert {done for done, unit in kill.seen if unit == "steps"} == {1, 2, 3, 4, 5, 6}
    assert contents(killed) == contents(undisturbed)


def test_killed_while_files_are_moved_it_moves_the_rest(inputs: Inputs, cache: Path, tmp_path: Path) -> None:
    class Fragile(LocalOut):
        left = 3

        def commit_shard(self, name: str, file: Path) -> None:
            self.left -= 1
            if self.left < 0:
                raise Killed
            super().commit_shard(name, file)

    out = Fragile(tmp_path / "o")
    with pytest.raises(Killed):
        run(inputs, cache, tmp_path, out=out)
    out.left = 100
    metrics, _ = run(inputs, cache, tmp_path, out=out)
    assert metrics["trained"]
    assert contents(out) == contents(run(inputs, cache, tmp_path / "whole")[1])


def test_two_stages_that_carry_the_optimizer_state_equal_one_of_twice_the_steps(
    inputs: Inputs, cache: Path, tmp_path: Path
) -> None:
    fields = {"beta": 0.0, "rho": "none", "epsilon_low": 1e6, "epsilon_high": 1e6, "schedule": "linear"}
    fields |= {"total_steps": 3, "warmup_steps": 1}
    _, first = run(inputs, cache, tmp_path / "1", **fields)
    _, second = run(as_previous(first, inputs, tmp_path / "p"), cache, tmp_path / "2", **fields)
    steps = pl.read_parquet(second.committed()["steps.parquet"])
    assert steps["step"].to_list() == [1]
    assert steps["learning_rate"].to_list() == [1e-3]
    state = load_file(second.committed()["optimizer.safetensors"])
    assert {float(value) for name, value in state.items() if name.endswith("::step")} == {2.0}
    reset = run(as_previous(first, inputs, tmp_path / "q"), cache, tmp_path / "3", optimizer_state="reset", **fields)[1]
    fresh = load_file(reset.committed()["optimizer.safetensors"])
    assert {float(value) for name, value in fresh.items() if name.endswith("::step")} == {1.0}
    policies = pl.read_parquet(second.committed()["policies.parquet"])
    assert sorted(policies["iteration"]) == [0, 1, 2]


def test_the_stage_leaves_the_process_as_it_was(inputs: Inputs, cache: Path, tmp_path: Path) -> None:
    torch.manual_seed(7)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    run(inputs, cache, tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_num_threads() == threads


def untrained(metrics: dict[str, Any], out: LocalOut, inputs: Inputs) -> bool:
    left = {name for name in out.committed() if not any(name.startswith(prefix) for prefix in out.dropped)}
    unchanged = out.committed()["policies.parquet"].read_bytes() == inputs["base"].file("policies.parquet").read_bytes()
    return not metrics["trained"] and left == {"policies.parquet"} and unchanged


def test_no_groups_or_flat_ones_leave_the_policy_as_it_is(inputs: Inputs, cache: Path, tmp_path: Path) -> None:
    empty, _ = write_artifacts(tmp_path / "none", [], cache)
    flat, _ = write_artifacts(tmp_path / "flat", make_calls(advantages=False), cache)
    for name, data, fields in (("none", empty, {}), ("flat", flat, {"beta": 0.0})):
        metrics, out = run(data, cache, tmp_path / f"{name}-out", **fields)
        assert untrained(metrics, out, data), name
        assert metrics["policy"] == pl.read_parquet(data["base"].file("policies.parquet"))["policy"][0]


def test_it_ends_early_as_a_success_with_its_reason(inputs: Inputs, cache: Path, tmp_path: Path) -> None:
    fields = {"epochs": 4, "learning_rate": 0.05, "target_kl": 1e-3}
    metrics, out = run(inputs, cache, tmp_path / "kl", **fields)
    assert "target_kl" in metrics["ended_early"]
    assert metrics["steps"] == 1, "the step that was found too far is not taken"
    one = run(inputs, cache, tmp_path / "one", **fields | {"epochs": 1})[1]
    got, want = (load_file(o.committed()["adapter/adapter_model.safetensors"]) for o in (out, one))
    assert all(torch.allclose(got[name], want[name], atol=1e-6) for name in want)
    metrics, out = run(inputs, cache, tmp_path / "entropy", entropy_floor=50.0)
    assert untrained(metrics, out, inputs)
    assert "entropy_floor" in metrics["reason"]


def test_a_loss_that_is_not_finite_names_its_rows(cache: Path, tmp_path: Path) -> None:
    calls = make_calls()
    calls[0].advantage, calls[0].sampling = 1e6, [-1e5]
    data, _ = write_artifacts(tmp_path / "data", calls, cache)
    with pytest.raises(StageError, match=r"loss of step 0 is .*rollout_id=r000, call_index=0"):
        run(data, cache, tmp_path / "o", rho_max=1e300)


def test_members_without_usable_tokens_are_named(cache: Path, tmp_path: Path) -> None:
    calls = make_calls()
    calls[3].completion, calls[3].sampling = [], []
    calls[4].weight = 0.0
    data, _ = write_artifacts(tmp_path / "silent", calls, cache)
    metrics, out = run(data, cache, tmp_path / "o")
    assert out.excluded == {"no_completion": 1, "zero_weight": 1}
    assert metrics["members"] == sum(call.copies for call in calls) - 2
    calls = make_calls()
    calls[3].completion[-1] = 1000
    data, _ = write_artifacts(tmp_path / "vocabulary", calls, cache)
    with pytest.raises(DataError, match=r"r003, call_index=0: token ids run from \d+ to 1000"):
        run(data, cache, tmp_path / "o2")
    table = pl.read_parquet(data["rollout"].file("invocations.parquet"))
    table.filter(pl.col("rollout_id") != "r001").write_parquet(data["rollout"].file("invocations.parquet"))
    with pytest.raises(ContractError, match=r"every member has its invocation.*1 row.*rollout_id=r001"):
        run(data, cache, tmp_path / "o3")


def test_rows_without_sampling_log_probabilities_are_refused_unless_rho_is_off(cache: Path, tmp_path: Path) -> None:
    data, _ = write_artifacts(tmp_path / "data", make_calls(), cache)
    file = data["rollout"].file("invocations.parquet")
    pl.read_parquet(file).with_columns(sampling_logprobs=pl.lit(None, pl.List(pl.Float32))).write_parquet(file)
    with pytest.raises(ContractError, match=r"sampling_logprobs are present: 12 rows"):
        run(data, cache, tmp_path / "o")
    metrics, _ = run(data, cache, tmp_path / "off", rho="none", ess_floor=0.5)
    assert metrics["trained"]
    assert metrics["ess"] is None


def test_the_adapter_of_another_base_or_shape_is_refused(inputs: Inputs, cache: Path, tmp_path: Path) -> None:
    _, out = run(inputs, cache, tmp_path / "first")
    with pytest.raises(DataError, match=r"has r = 4, the recipe asks for 8"):
        run(as_previous(out, inputs, tmp_path / "p"), cache, tmp_path / "o", adapter={"r": 8, "alpha": 8})
    other = as_previous(out, inputs, tmp_path / "q")
    other["previous"].file("adapter/base.json").write_text(json.dumps({"base": "0" * 64}))
    with pytest.raises(DataError, match="was trained on the base 0000"):
        run(other, cache, tmp_path / "o2")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": "cispo"}, r"train\.balance = 'sequence': this loss goes with balance 'token'"),
        ({"loss": "sapo", "balance": "token"}, "goes with balance 'sequence' or 'module'"),
        ({"ratio_level": "sequence", "balance": "token"}, "ratio_level = 'sequence' goes with"),
        ({"adapter": {"modules": {"other": "a"}}}, r"names no adapter for the module .m.*it names ..other"),
        ({"adapter": {"targets": ["q_proj", "lm_head"]}}, "output embedding stays frozen"),
        ({"group": {"unit": "trajectory"}, "balance": "token"}, r"rollouts count equally: set train\.balance = 'seq"),
        ({"group": {"unit": "trajectory"}, "balance": "module"}, r"rollouts count equally: set train\.balance = 'seq"),
        ({"group": {"unit": "trajectory"}, "loss": "dr_grpo"}, "Losses for trajectories: grpo, sapo, bnpo, dapo, cisp"),
        ({"schedule": "linear", "total_steps": 1, "epochs": 2}, "ends at step 2"),
    ],
)
def test_what_is_not_supported_is_refused_and_the_message_says_what_is(
    inputs: Inputs, cache: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        run(inputs, cache, tmp_path, **fields)


def test_the_recipe_slice_is_made_of_canonical_values() -> None:
    from schemas.canonical import digest
    from stages.train import recipe_slice

    assert digest(recipe_slice(recipe())) != digest(recipe_slice(recipe(learning_rate=2e-3)))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    yield
    assert not torch.is_inference_mode_enabled()
