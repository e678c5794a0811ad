"""Tiny models with a LoRA that is not zero, and rows that share prefixes, for tests of the forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from stages.training.members import Row
from stages.training.scorer import Scorer

KINDS = (LlamaConfig, Qwen2Config, Qwen3Config)
SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}


def lora_model(config: Any, device: str = "cpu") -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).requires_grad_(False)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"]
    return get_peft_model(model, LoraConfig(r=4, target_modules=targets, init_lora_weights=False)).to(device)


def tree_rows() -> list[Row]:
    rng = np.random.default_rng(3)
    trunk, rows = rng.integers(0, 97, 21), []
    for example in range(3):
        prompt = np.concatenate([trunk, rng.integers(0, 97, 2 + example)])
        for member in range(4):
            completion = rng.integers(0, 3, int(rng.integers(1, 6)))
            rows.append(Row(f"{example}-{member}", 0, prompt, completion, None, 0.6 if member == 2 else 1.0))
    return [*rows, rows[2], Row("other", 0, rng.integers(0, 97, 4), rng.integers(0, 97, 7), None, 1.0)]


def scored(model: Any, rows: list[Row], packed: bool) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor], int]:
    """Log-probabilities, entropies, the LoRA's gradients of a weighted sum, and the tokens computed."""
    model.zero_grad()
    result = Scorer(model, packed=packed, autocast=False)(rows)
    factors = torch.linspace(-1, 1, result.log_probs.numel(), device=result.log_probs.device)
    (result.log_probs * factors.view_as(result.log_probs)).sum().backward()
    gradients = [value.grad.clone() for value in model.parameters() if value.grad is not None]
    return result.log_probs.detach(), result.entropy, gradients, result.forward_tokens


def assert_packed_equals_plain(model: Any, rows: Any, *, values: float, gradients: float) -> None:
    """Log-probabilities and entropies to `values`, gradients to that share of the largest entry; far fewer tokens."""
    plain, packed = scored(model, rows, packed=False), scored(model, rows, packed=True)
    assert packed[3] * 3 < plain[3]
    assert torch.allclose(plain[0], packed[0], atol=values)
    assert torch.allclose(plain[1], packed[1], atol=values)
    assert len(plain[2]) == len(packed[2]) > 0
    for left, right in zip(plain[2], packed[2], strict=True):
        assert float((left - right).abs().max()) < gradients * float(left.abs().max())
