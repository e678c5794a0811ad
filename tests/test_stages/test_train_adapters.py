"""Several adapters in one train stage: each is moved by its own modules alone, and all else keeps its bytes."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from schemas.canonical import digest_file
from schemas.errors import DataError, RecipeError
from stages.contract import Inputs
from stages.engines.adapters import adapter_digest, read_adapters
from stages.engines.models import load_model, resolve_base
from stages.training.naming import adapter_names, check_declared
from tests.test_stages.train_kit import (
    EOS,
    VOCABULARY,
    Call,
    Killed,
    KillsOnce,
    LocalOut,
    as_previous,
    make_calls,
    run,
    write_artifacts,
)

EACH = {"r": 4, "alpha": 8, "modules": "each"}
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def calls_of(module: str, seed: int, examples: range = range(3)) -> list[Call]:
    """Four members of one group an example."""
    rng = np.random.default_rng(seed)
    trunk = rng.integers(3, VOCABULARY, 16).tolist()
    found = []
    for example in examples:
        own = rng.integers(3, VOCABULARY, 4).tolist()
        for _ in range(4):
            completion = [*rng.integers(60, 64, int(rng.integers(0, 5))).tolist(), EOS]
            sampling = (-3.0 + rng.normal(0, 0.5, len(completion))).tolist()
            group = f"{module}-{example}"
            found.append(
                Call([*trunk, *own], completion, sampling, f"e{example}", group, float(rng.normal()), module=module)
            )
    return found


PLAN, STEP = calls_of("plan", 1), calls_of("step", 2)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Inputs:
    return write_artifacts(tmp_path_factory.mktemp("data"), PLAN + STEP, cache)[0]


TABLE = {"plan": "a", "step": "b"}
Trained = Callable[[Any], tuple[dict[str, Any], LocalOut]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, inputs: Inputs, cache: Path) -> Trained:
    """A first iteration with some `adapter.modules`, each made once."""

    @functools.cache
    def made(text: str) -> tuple[dict[str, Any], LocalOut]:
        return run(inputs, cache, tmp_path_factory.mktemp("first"), adapter=EACH | {"modules": json.loads(text)})

    return lambda modules: made(json.dumps(modules))


def contents(out: LocalOut) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in sorted(out.committed().items())}


def file_of(out: LocalOut, name: str) -> Path:
    return out.committed()[name]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"beta": 0.1, "reference": "base", "adapter": EACH | {"dropout": 0.2}}, marks=pytest.mark.slow),
        {"beta": 0.1, "reference": "previous"},
        pytest.param({"beta": 0.0, "balance": "module", "grad_clip": 0.01}, marks=pytest.mark.slow),
    ],
    ids=["base and dropout", "previous", "no KL and clipped"],
)
def test_an_adapter_is_what_it_would_be_if_its_modules_were_alone_over_two_iterations(
    inputs: Inputs, cache: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    fields = {"adapter": EACH, "examples_per_step": 2, "epochs": 2} | fields

    def two_iterations(data: Inputs, folder: Path) -> LocalOut:
        _, first = run(data, cache, folder / "1", **fields)
        return run(as_previous(first, data, folder / "p"), cache, folder / "2", **fields)[1]

    both = two_iterations(inputs, tmp_path / "both")
    for name, calls in (("plan", PLAN), ("step", STEP)):
        data, _ = write_artifacts(tmp_path / f"{name}-data", calls, cache)
        alone = two_iterations(data, tmp_path / name)
        for file in (f"adapters/{name}/{WEIGHTS}", f"optimizers/{name}.safetensors"):
            assert file_of(both, file).read_bytes() == file_of(alone, file).read_bytes(), file


def test_the_policy_names_the_adapter_of_each_module_and_peft_loads_it(
    trained: Trained, cache: Path, tmp_path: Path
) -> None:
    from peft import PeftModel

    metrics, out = trained("each")
    root = out.root / "files"
    adapters = read_adapters(root)
    assert adapters.names == {"plan": "plan", "step": "step"}
    policies = pl.read_parquet(file_of(out, "policies.parquet")).sort("iteration")
    named = json.loads(policies["adapters"][1])
    assert named == {name: adapter_digest(root / "adapters" / name) for name in ("plan", "step")}
    assert len(set(named.values())) == 2
    assert metrics["policy"] == policies["policy"][1]
    base = resolve_base("tiny-random", tmp_path, cache)
    for folder in adapters.folders.values():
        model = PeftModel.from_pretrained(load_model(base, "float32"), folder)
        assert any(float(value.abs().max()) > 0 for name, value in model.named_parameters() if "lora_B" in name)
        assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", WEIGHTS, "base.json"]


def test_an_adapter_whose_modules_had_no_groups_keeps_its_bytes(trained: Trained, cache: Path, tmp_path: Path) -> None:
    _, first = trained("each")
    only_step, _ = write_artifacts(tmp_path / "data", STEP, cache)
    second_inputs = as_previous(first, only_step, tmp_path / "p")
    metrics, second = run(second_inputs, cache, tmp_path / "2", adapter=EACH)
    before, after = contents(first), contents(second)
    kept = [name for name in after if "plan" in name and name != "batch_plan.parquet"]
    assert len(kept) == 4
    assert all(after[name] == before[name] for name in kept)
    assert after[f"adapters/step/{WEIGHTS}"] != before[f"adapters/step/{WEIGHTS}"]
    assert metrics["adapters"]["plan"]["reason"] == "no group has members to train on"
    assert metrics["adapters"]["plan"]["steps"] == 0
    policies = pl.read_parquet(file_of(second, "policies.parquet")).sort("iteration")["adapters"]
    was, now = (json.loads(text) for text in policies[1:])
    assert was["plan"] == now["plan"]
    assert was["step"] != now["step"]


def test_a_module_that_comes_later_gets_a_fresh_adapter(cache: Path, tmp_path: Path) -> None:
    only_plan, _ = write_artifacts(tmp_path / "plan", PLAN, cache)
    _, first = run(only_plan, cache, tmp_path / "1", adapter=EACH)
    assert read_adapters(tmp_path / "1" / "files").names == {"plan": "plan"}
    only_step, _ = write_artifacts(tmp_path / "step", STEP, cache)
    _, second = run(as_previous(first, only_step, tmp_path / "p"), cache, tmp_path / "2", adapter=EACH)
    assert read_adapters(tmp_path / "2" / "files").names == {"plan": "plan", "step": "step"}
    weights = f"adapters/plan/{WEIGHTS}"
    assert file_of(second, weights).read_bytes() == file_of(first, weights).read_bytes()


def test_a_table_lets_some_modules_share_an_adapter(inputs: Inputs, cache: Path, tmp_path: Path) -> None:
    check = calls_of("check", 3)
    data, _ = write_artifacts(tmp_path / "data", PLAN + STEP + check, cache)
    modules = {"plan": "write", "step": "write", "check": "judge"}
    metrics, out = run(data, cache, tmp_path / "o", adapter=EACH | {"modules": modules})
    assert metrics["adapters"]["write"]["modules"] == ["plan", "step"]
    assert metrics["adapters"]["write"]["members"] == len(PLAN + STEP)
    assert metrics["adapters"]["judge"]["members"] == len(check)
    named = json.loads(pl.read_parquet(file_of(out, "policies.parquet")).sort("iteration")["adapters"][1])
    assert named["plan"] == named["step"] != named["check"]
    alone, _ = write_artifacts(tmp_path / "alone", check, cache)
    _, judge = run(alone, cache, tmp_path / "j", adapter=EACH | {"modules": modules})
    assert (
        file_of(out, f"adapters/judge/{WEIGHTS}").read_bytes()
        == file_of(judge, f"adapters/judge/{WEIGHTS}").read_bytes()
    )


def test_one_shared_adapter_moves_by_all_modules_together(trained: Trained) -> None:
    table, shared = (trained(modules)[1] for modules in ({"plan": "all", "step": "all"}, "shared"))
    one, other = (pl.read_parquet(file_of(out, "steps.parquet")) for out in (table, shared))
    assert one["adapter"].unique().to_list() == ["all"]
    assert other["adapter"].unique().to_list() == ["shared"]
    assert one["members"].to_list() == other["members"].to_list() == [len(PLAN + STEP)]


def test_killed_after_any_step_of_any_adapter_it_ends_with_the_same_bytes(
    inputs: Inputs, cache: Path, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"adapter": EACH, "examples_per_step": 2, "beta": 0.1}
    _, undisturbed = run(inputs, cache, tmp_path / "whole", **fields)
    kill = KillsOnce()
    killed = LocalOut(tmp_path / "killed", kill)
    for _ in range(30):
        with contextlib.suppress(Killed):
            run(inputs, cache, tmp_path, out=killed, **fields)
            break
    for name in ("plan", "step"):
        assert {done for done, unit in kill.seen if unit == f"steps of {name}"} == {1, 2}
    assert contents(killed) == contents(undisturbed)


def test_an_adapter_that_is_done_is_not_trained_again(
    inputs: Inputs, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stages.training import turns

    trained: list[str] = []
    original = turns._fit

    def fit(job: Any, draft: Path, out: Any, world: Any) -> Any:
        trained.append(job.adapter)
        if trained == ["plan", "step"]:
            raise Killed
        return original(job, draft, out, world)

    monkeypatch.setattr(turns, "_fit", fit)
    out = LocalOut(tmp_path / "o")
    with pytest.raises(Killed):
        run(inputs, cache, tmp_path, out=out, adapter=EACH)
    run(inputs, cache, tmp_path, out=out, adapter=EACH)
    assert trained == ["plan", "step", "step"]


def test_a_step_without_its_members_is_none_for_an_adapter_but_the_schedule_goes_on(
    cache: Path, tmp_path: Path
) -> None:
    data, _ = write_artifacts(tmp_path / "data", calls_of("plan", 1, range(3)) + calls_of("step", 2, range(1)), cache)
    fields: dict[str, Any] = {"schedule": "linear", "total_steps": 8, "examples_per_step": 1, "epochs": 1}
    metrics, first = run(data, cache, tmp_path / "1", adapter=EACH, **fields)
    steps = pl.read_parquet(file_of(first, "steps.parquet"))
    plan = pl.read_parquet(file_of(first, "batch_plan.parquet"))
    (place,) = plan.filter(pl.col("group_id") == "step-0")["step"].unique()
    assert steps.filter(adapter="plan")["step"].to_list() == [0, 1, 2]
    assert steps.filter(adapter="step")["step"].to_list() == [place]
    rates = dict(steps.filter(adapter="plan").select("step", "learning_rate").iter_rows())
    assert steps.filter(adapter="step")["learning_rate"].to_list() == [rates[place]]
    taken = {name: metrics["adapters"][name]["steps"] for name in ("plan", "step")}
    assert taken == {"plan": 3, "step": 1}
    for name, count in taken.items():
        state = load_file(file_of(first, f"optimizers/{name}.safetensors"))
        assert {float(value) for key, value in state.items() if key.endswith("::step")} == {float(count)}
    _, second = run(as_previous(first, data, tmp_path / "p"), cache, tmp_path / "2", adapter=EACH, **fields)
    assert pl.read_parquet(file_of(second, "steps.parquet"))["step"].min() == 3


def test_one_adapter_may_end_early_and_the_other_go_on(cache: Path, tmp_path: Path) -> None:
    data, _ = write_artifacts(tmp_path / "data", calls_of("plan", 1, range(1)) + calls_of("step", 2, range(3)), cache)
    fields: dict[str, Any] = {"examples_per_step": 1, "learning_rate": 0.05, "target_kl": 1e-3}
    metrics, out = run(data, cache, tmp_path / "o", adapter=EACH, **fields)
    told = metrics["adapters"]
    assert told["plan"]["ended_early"] is None
    assert "target_kl" in told["step"]["ended_early"]
    assert metrics["ended_early"] == f"adapter 'step': {told['step']['ended_early']}"
    assert told["step"]["steps"] < 3
    assert json.loads(file_of(out, "optimizer.json").read_text())["run_steps"] == 3


def test_only_the_adapter_with_something_to_learn_is_made(cache: Path, tmp_path: Path) -> None:
    flat = calls_of("plan", 1)
    for call in flat:
        call.advantage = 0.0
    data, _ = write_artifacts(tmp_path / "data", flat + STEP, cache)
    metrics, _ = run(data, cache, tmp_path / "o", adapter=EACH, beta=0.0)
    assert metrics["adapters"]["plan"]["reason"] == "every advantage is 0 and train.beta is 0"
    assert read_adapters(tmp_path / "o" / "files").names == {"step": "step"}


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("each", "shared"),
        ("shared", "each"),
        ("each", TABLE),
        (TABLE, {"plan": "a", "step": "a"}),
        (TABLE, {"plan": "b", "step": "a"}),
    ],
)
def test_other_modules_for_an_adapter_are_refused_within_a_run(
    trained: Trained, inputs: Inputs, cache: Path, tmp_path: Path, before: Any, now: Any
) -> None:
    _, first = trained(before)
    with pytest.raises(DataError, match=r"an adapter keeps its modules over a run\. Start a new run"):
        run(as_previous(first, inputs, tmp_path / "p"), cache, tmp_path / "2", adapter=EACH | {"modules": now})


def test_a_rollout_of_several_adapters_is_no_unit(inputs: Inputs, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"goes with adapter\.modules = 'shared'"):
        run(inputs, cache, tmp_path, adapter=EACH, group={"unit": "trajectory"})


def test_every_module_has_a_folder_of_its_own() -> None:
    modules = ["hop.generate_query", "a/b", "a%2Fb", "..", ".", "über", "Plan", "a b"]
    names = adapter_names("each", modules)
    assert len(set(names.values())) == len(modules)
    assert names["hop.generate_query"] == "hop.generate_query"
    for name in names.values():
        assert "/" not in name
        assert not name.startswith(".")
        assert name.isascii()
    with pytest.raises(RecipeError, match="cannot name an adapter"):
        adapter_names("each", ["*"])
    with pytest.raises(RecipeError, match="cannot name an adapter"):
        adapter_names("each", ["x" * 500])


def test_a_table_must_name_every_module_and_no_other() -> None:
    assert adapter_names({"b": "x", "a": "y"}, ["a"]) == {"a": "y", "b": "x"}
    with pytest.raises(RecipeError, match="names no adapter for the module 'c'"):
        adapter_names({"b": "x"}, ["b", "c"])
    with pytest.raises(RecipeError, match=r"names 'stpe', which is no module of the program; it has plan, step"):
        check_declared({"plan": "a", "stpe": "b"}, ["plan", "step"])
    check_declared({"plan": "a", "whatever": "b"}, None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lora_weights_are_float32_over_a_base_of_either_dtype(cache: Path, tmp_path: Path, dtype: str) -> None:
    data, base = write_artifacts(tmp_path / "data", make_calls(), cache)
    before = digest_file(base.path / "model.safetensors")
    fields = {"model": {"base": "tiny-random", "dtype": dtype}, "precision": "bfloat16", "epochs": 2}
    metrics, out = run(data, cache, tmp_path / "o", **fields)
    tensors = load_file(file_of(out, f"adapter/{WEIGHTS}"))
    assert {value.dtype for value in tensors.values()} == {torch.float32}
    assert metrics["steps"] == 2
    assert metrics["kl_old"] > 0
    assert digest_file(base.path / "model.safetensors") == before
