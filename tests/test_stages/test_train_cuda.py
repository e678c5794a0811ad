"""On a GPU: the packed path equals the plain one, by FlexAttention and block by block. `pytest -m cuda`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from transformers import LlamaConfig

from schemas.execution import Execution
from stages import train
from stages.training import flex
from stages.training.scorer import Scorer
from tests.test_stages.model_kit import KINDS, SIZES, assert_packed_equals_plain, lora_model, tree_rows
from tests.test_stages.train_kit import LocalOut, make_calls, recipe, with_logprobs, write_artifacts

pytestmark = pytest.mark.cuda

WIDE = SIZES | {"hidden_size": 64, "head_dim": 16}
"""Heads that FlexAttention takes."""


@pytest.fixture(autouse=True)
def _exact_products() -> None:
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("blocks", [False, True], ids=["flex", "blocks"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_log_probabilities_and_gradients_equal_the_plain_ones(
    kind: Any, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if blocks:
        monkeypatch.setattr(flex, "why_not", lambda config, device: "asked for by the test")
    model, rows = lora_model(kind(**WIDE), "cuda"), tree_rows()
    assert (Scorer(model, packed=True, autocast=False).why_blocks is None) != blocks
    assert_packed_equals_plain(model, rows, values=1e-4, gradients=1e-3)


def test_bfloat16_stays_within_that_dtypes_own_noise() -> None:
    model, rows = lora_model(LlamaConfig(**WIDE), "cuda"), tree_rows()
    with torch.no_grad():
        exact = Scorer(model, packed=False, autocast=False)(rows).log_probs
        noise, packed = (
            float((Scorer(model, packed=packed, autocast=True)(rows).log_probs - exact).abs().max())
            for packed in (False, True)
        )
    assert 0 < packed < 3 * noise


def test_a_whole_stage_takes_the_same_steps_on_both_paths(tmp_path: Path) -> None:
    inputs, _ = write_artifacts(tmp_path, make_calls(), tmp_path / "cache")
    found = []
    for sharing in (True, False):
        out = LocalOut(tmp_path / str(sharing))
        execution = Execution(device="cuda", cache=str(tmp_path / "cache"), train_tokens=60)
        how = recipe(epochs=2, beta=0.1, prefix_sharing=sharing)
        given = with_logprobs(inputs, how, tmp_path / "cache", tmp_path / f"scored-{sharing}")
        metrics = train.run(given, how, execution, out)
        found.append(pl.read_parquet(out.committed()["steps.parquet"]))
        assert metrics["path"].startswith("packed" if sharing else "plain")
    for name in ("loss", "grad_norm", "entropy", "kl_ref"):
        assert found[0][name].to_list() == pytest.approx(found[1][name].to_list(), rel=1e-3, abs=1e-5), name
