"""One optimizer step of the whole stage beside the loss written by hand: value and gradient.

With `adam_beta1 = 0` Adam's first moment is the gradient of the last step, so that the stage is tested as it is.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from stages.contract import Inputs
from stages.engines.models import BaseModel
from tests.oracle_loss import Example, log_probs, step_loss
from tests.test_stages.train_kit import EOS, VOCABULARY, Call, LocalOut, as_previous, make_calls, run, write_artifacts

LENGTH = 16
"""Longest completion that the recipe allows."""
FIXED = {
    "adam_beta1": 0.0,
    "grad_clip": 1e9,
    "examples_per_step": 8,
    "learning_rate": 4e-3,
    "rollout": {"sampling": {"max_new_tokens": LENGTH}},
}


@dataclass
class Setting:
    inputs: Inputs
    """Continues from an adapter that differs from the base."""
    base: BaseModel
    cache: Path
    calls: list[Call]

    @property
    def previous(self) -> Path:
        return self.inputs["previous"].file("adapter")


def make_setting(root: Path, calls: list[Call], **fields: Any) -> Setting:
    """The artifacts of these calls, and an adapter to continue from: one large step on them."""
    inputs, base = write_artifacts(root, calls, root / "cache")
    _, out = run(inputs, root / "cache", root / "first", **FIXED | {"learning_rate": 0.05} | fields)
    gc.collect()
    gc.freeze()  # every run of the stage collects; looking through all that is imported took half the time
    return Setting(as_previous(out, inputs, root / "previous"), base, root / "cache", calls)


def call_zoo() -> list[Call]:
    """Calls of three ragged groups and two modules: copies, temperatures, and completions that padding could spoil.

    The tokenizer pads with the eos token.
    """
    calls = make_calls()
    for index, call in enumerate(calls):
        call.module = "second" if index % 3 == 0 else "first"
        call.temperature = {1: 0.7, 5: 0.0, 7: 1.3}.get(index, 1.0)
    longest, of_padding = calls[2], calls[6]
    longest.completion = [60 + index % 4 for index in range(LENGTH)]  # cut at the limit: no eos
    longest.sampling = np.linspace(-4.0, -2.0, LENGTH).tolist()
    of_padding.prompt = [EOS, EOS, *of_padding.prompt, EOS, 0]
    of_padding.completion, of_padding.sampling = [EOS, 0, EOS, EOS], [-2.0, -4.0, -2.5, -3.0]
    return calls[:-1]  # the last group has one member fewer


def trajectory_zoo(balance: str = "sequence") -> list[Call]:
    """Rollouts of one to four calls of three modules, by no means equally long; one rollout stands twice.

    Args:
        balance: what the weights of the table mean.
    """
    rng = np.random.default_rng(11)
    trunks = {name: rng.integers(3, VOCABULARY, 12).tolist() for name in ("plan", "search", "answer")}
    calls = []
    for example, size in enumerate((4, 2, 3)):
        for member in range(size):
            made = 1 + (example + 2 * member) % 4
            own = [_of_rollout(rng, trunks, f"e{example}", f"e{example}-r{member}", at, made) for at in range(made)]
            advantage, total = float(rng.normal()), sum(len(call.completion) for call in own)
            for call in own:
                call.advantage, call.copies = advantage, 2 if (example, member) == (0, 1) else 1
                call.weight = (len(call.completion) if balance == "sequence" else 1) / total
            calls += own
    return calls


def _of_rollout(rng: Any, trunks: dict[str, list[int]], example: str, rollout: str, at: int, made: int) -> Call:
    name = ("plan", "search", "search", "answer")[at if at < made - 1 else 3]
    length = (1, LENGTH, 3, 2)[at] if made == 4 else int(rng.integers(1, 7))
    prompt = [*trunks[name], int(example[1:]) + 5, *rng.integers(3, VOCABULARY, 2 * at).tolist()]
    completion = [*rng.integers(60, 64, length - 1).tolist(), EOS]
    logged = (-4.4 + rng.normal(0, 0.5, length)).tolist()
    temperature = 0.7 if name == "search" else 1.0
    call = Call(prompt, completion, logged, example, f"g-{example}", 0.0, name, temperature)
    call.rollout, call.call_index = rollout, at
    return call


def exact(base: BaseModel, adapter: Path | None) -> Any:
    """The model in float64 with plain attention."""
    model = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float64, attn_implementation="eager")
    if adapter is None:
        return model.eval()
    return PeftModel.from_pretrained(model, adapter, is_trainable=True).double().eval()


def oracle_rows(setting: Setting, *, trajectory: bool = False) -> list[Example]:
    """Every member, copies included, with its log-probabilities under pi_0 and under the base."""
    rows = []
    for call in setting.calls:
        for copy in range(call.copies):
            own = Example(call.prompt, call.completion, call.sampling, call.advantage, call.temperature or 1.0)
            own.module, own.weight = call.module, 1.0 if trajectory else call.weight
            own.member = f"{call.rollout}, {copy}" if trajectory else None
            rows.append(own)
    with torch.no_grad():
        old, reference = exact(setting.base, setting.previous), exact(setting.base, None)
        for row in rows:
            row.old, row.reference = log_probs(old, row), log_probs(reference, row)
    return rows


def gradients(out: LocalOut) -> dict[str, torch.Tensor]:
    state = load_file(out.committed()["optimizer.safetensors"])
    return {name.removesuffix("::exp_avg"): value for name, value in state.items() if name.endswith("::exp_avg")}


def second_step(
    setting: Setting, folder: Path, tokens: int, fields: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, torch.Tensor], Path]:
    """Row and gradient of a stage's second step, where w is not 1, and the adapter that the first one gave."""
    _, one = run(setting.inputs, setting.cache, folder / "one", tokens, **FIXED | fields)
    _, two = run(setting.inputs, setting.cache, folder / "two", tokens, **FIXED | fields | {"epochs": 2})
    step = pl.read_parquet(two.committed()["steps.parquet"]).row(-1, named=True)
    return step, gradients(two), one.committed()["adapter/adapter_config.json"].parent


def assert_step(
    loss: float, got: dict[str, torch.Tensor], model: Any, rows: list[Example], fields: dict[str, Any]
) -> None:
    """Loss and gradient are those written by hand."""
    expected = step_loss(model, rows, **oracle_options(fields))
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=2e-5)
    assert_gradient(got, model)


def assert_gradient(got: dict[str, torch.Tensor], model: Any) -> None:
    """The gradient is that of a model after its backward pass."""
    want = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    assert got.keys() == want.keys()
    scale = max(float(value.abs().max()) for value in want.values())
    assert scale > 1e-6, "a gradient of nothing shows nothing"
    for name, value in want.items():
        assert float((got[name].double() - value).abs().max()) < 2e-4 * scale, name


def oracle_options(fields: dict[str, Any]) -> dict[str, Any]:
    options = {"loss": "grpo", "beta": 0.01, "rho": "truncate", "rho_max": 2.0, "length": LENGTH} | fields
    options["trajectory"] = fields.get("group", {}).get("unit") == "trajectory"
    if options["loss"] == "grpo" and options.get("balance") == "token":
        options["loss"] = "dr_grpo"
    return options
