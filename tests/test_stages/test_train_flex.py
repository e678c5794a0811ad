"""FlexAttention's mask, and its forward pass on a CPU. Its gradient needs a GPU: `test_train_cuda.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask
from transformers import LlamaConfig

from stages.training import flex
from stages.training.prefix_tree import build
from stages.training.scorer import Scorer
from tests.test_stages.model_kit import KINDS, SIZES, lora_model, tree_rows

CPU = torch.device("cpu")


def long_sequences(seed: int) -> list[np.ndarray[Any, Any]]:
    """Sequences of up to 300 tokens that leave one another at places near and far from the blocks' edges."""
    rng = np.random.default_rng(seed)
    trunk = rng.integers(0, 9, 300)
    cuts = [*rng.integers(1, 300, 6).tolist(), 127, 128, 129, 256]
    return [np.concatenate([trunk[:cut], rng.integers(0, 9, int(rng.integers(1, 90)))]) for cut in cuts]


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 99))
def test_the_mask_is_torchs_own_for_the_ancestor_test_and_the_ancestors_are_the_paths(seed: int) -> None:
    tree = build(long_sequences(seed))
    layout = flex.FlexLayout.of(tree, torch.float32, CPU, lengths=256)
    size = layout.size
    assert size % 256 == 0
    theirs = create_block_mask(layout.mask.mask_mod, 1, 1, size, size, device="cpu", BLOCK_SIZE=flex.BLOCK)
    assert torch.equal(layout.mask.to_dense(), theirs.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks"):
        assert torch.equal(getattr(layout.mask, name), getattr(theirs, name)), name
    nodes = torch.arange(size)
    seen = layout.mask.mask_mod(None, None, nodes[:, None], nodes[None, :])
    for path in tree.paths:
        for place, node in enumerate(path):
            assert torch.nonzero(seen[node]).flatten().tolist() == sorted(path[: place + 1])
    assert seen.any(-1).all(), "what fills up the tree sees itself, or its softmax is not finite"


@pytest.mark.parametrize("kind", KINDS)
def test_its_forward_pass_equals_the_plain_path(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = lora_model(kind(**SIZES)), tree_rows()
    with torch.no_grad():
        plain = Scorer(model, packed=False, autocast=False)(rows)
        monkeypatch.setattr(flex, "why_not", lambda config, device: None)
        packed = Scorer(model, packed=True, autocast=False)(rows)
    assert packed.forward_tokens * 3 < plain.forward_tokens
    assert torch.allclose(plain.log_probs, packed.log_probs, atol=2e-5)
    assert torch.allclose(plain.entropy, packed.entropy, atol=2e-5)


def test_it_is_chosen_on_cuda_where_the_heads_have_a_width_that_it_takes_and_says_why_not_elsewhere() -> None:
    cuda = torch.device("cuda")
    assert flex.why_not(LlamaConfig(hidden_size=64, num_attention_heads=2), cuda) is None
    assert "gradient on cpu" in (flex.why_not(LlamaConfig(), CPU) or "")
    assert "have 80" in (flex.why_not(LlamaConfig(hidden_size=160, num_attention_heads=2), cuda) or "")
    assert "have 8" in (flex.why_not(LlamaConfig(**SIZES), cuda) or "")
