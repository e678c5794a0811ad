"""One optimizer step against a loss written by hand in float64: value and gradient, through the whole stage.

With `adam_beta1 = 0` Adam's first moment is the gradient of the last step, so that the stage is tested as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from stages.contract import Inputs
from stages.engines.models import BaseModel
from tests.oracle_loss import Example, log_probs, step_loss
from tests.test_stages.train_kit import Call, LocalOut, as_previous, make_calls, run, write_artifacts

FIXED = {"adam_beta1": 0.0, "grad_clip": 1e9, "examples_per_step": 8, "learning_rate": 4e-3}
LENGTH = 16


@dataclass
class Setting:
    inputs: Inputs
    """Continues from an adapter that differs from the base."""
    base: BaseModel
    cache: Path
    calls: list[Call]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    root = tmp_path_factory.mktemp("loss")
    calls = make_calls()
    for index, call in enumerate(calls):
        call.module = "second" if index % 3 == 0 else "first"
        call.temperature = 0.7 if index % 4 == 1 else 1.0
    inputs, base = write_artifacts(root, calls, root / "cache")
    _, out = run(inputs, root / "cache", root / "first", **FIXED | {"learning_rate": 0.05})
    return Setting(as_previous(out, inputs, root / "previous"), base, root / "cache", calls)


def exact(base: BaseModel, adapter: Path | None) -> Any:
    model = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float64, attn_implementation="eager")
    if adapter is None:
        return model.eval()
    return PeftModel.from_pretrained(model, adapter, is_trainable=True).double().eval()


def oracle_rows(setting: Setting) -> list[Example]:
    with torch.no_grad():
        old, reference = exact(setting.base, setting.inputs["previous"].file("adapter")), exact(setting.base, None)
        rows = [
            Example(c.prompt, c.completion, c.sampling, c.advantage, c.temperature, c.weight, c.module)
            for c in setting.calls
            for _ in range(c.copies)
        ]
        for row in rows:
            row.old, row.reference = log_probs(old, row), log_probs(reference, row)
    return rows


def gradients(out: LocalOut) -> dict[str, torch.Tensor]:
    state = load_file(out.committed()["optimizer.safetensors"])
    return {name.removesuffix("::exp_avg"): value for name, value in state.items() if name.endswith("::exp_avg")}


def second_step(
    setting: Setting, folder: Path, tokens: int, fields: dict[str, Any]
) -> tuple[float, dict[str, torch.Tensor], Path]:
    """Loss and gradient of a stage's second step, where w is not 1, and the adapter that the first one gave."""
    _, one = run(setting.inputs, setting.cache, folder / "one", tokens, **FIXED | fields)
    _, two = run(setting.inputs, setting.cache, folder / "two", tokens, **FIXED | fields | {"epochs": 2})
    loss = pl.read_parquet(two.committed()["steps.parquet"])["loss"][-1]
    return loss, gradients(two), one.committed()["adapter/adapter_config.json"].parent


def assert_step(
    loss: float, got: dict[str, torch.Tensor], model: Any, rows: list[Example], fields: dict[str, Any]
) -> None:
    expected = step_loss(model, rows, **oracle_options(fields))
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=2e-5)
    want = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    assert got.keys() == want.keys()
    scale = max(float(value.abs().max()) for value in want.values())
    assert scale > 1e-6, "a gradient of nothing shows nothing"
    for name, value in want.items():
        assert float((got[name].double() - value).abs().max()) < 2e-4 * scale, name


SMALL = {"rollout": {"sampling": {"max_new_tokens": LENGTH}}}
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


def oracle_options(fields: dict[str, Any]) -> dict[str, Any]:
    options = {"loss": "grpo", "beta": 0.01, "rho": "truncate", "rho_max": 2.0, "length": LENGTH} | fields
    if options["loss"] == "grpo" and options.get("balance") == "token":
        options["loss"] = "dr_grpo"
    return options


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_equals_the_hand_written_loss_in_uneven_packed_micro_batches(
    setting: Setting, tmp_path: Path, name: str
) -> None:
    fields = OBJECTIVES[name]
    loss, got, adapter = second_step(setting, tmp_path, 45, fields | SMALL)
    rows = oracle_rows(setting)
    if fields.get("reference") == "previous":
        for row in rows:
            row.reference = row.old
    model = exact(setting.base, adapter)
    assert_step(loss, got, model, rows, fields)


@pytest.mark.parametrize("tokens", [90, 100_000])
def test_the_plain_path_gives_the_same_step(setting: Setting, tmp_path: Path, tokens: int) -> None:
    fields = OBJECTIVES["KL to the base, rho masked"]
    loss, got, adapter = second_step(setting, tmp_path, tokens, fields | SMALL | {"prefix_sharing": False})
    assert_step(loss, got, exact(setting.base, adapter), oracle_rows(setting), fields)


def test_the_clipped_case_does_clip_and_a_step_is_cut_into_micro_batches(setting: Setting, tmp_path: Path) -> None:
    fields = FIXED | OBJECTIVES["clipped"] | SMALL | {"epochs": 2}
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
