"""Log-probabilities and entropies from hidden states, without ever holding the logits of all positions.

Change from GRPO/TRL: only the positions that predict a completion token are scored, each distinct one once, and the
temperature belongs to the position. The head is frozen, so the forward pass can already compute the derivative of a
token's log-probability by its hidden state, `(W[y] - sum_v p_v W[v]) / T`, and the backward pass is a scaling.
"""

from __future__ import annotations

from typing import Any

import torch

_CHUNK_ELEMENTS = 1 << 24
"""Logits held at once (64 MiB of float32)."""


class _TargetLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917  # autograd passes by position
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        inverse_temperature: torch.Tensor,
        position: torch.Tensor,
        target: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        size = len(hidden)
        precise = torch.promote_types(hidden.dtype, torch.float32)
        normalizer = torch.empty(size, dtype=precise, device=hidden.device)
        entropy = torch.empty_like(normalizer)
        expected = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        chosen = torch.empty(len(target), dtype=precise, device=hidden.device)
        rows = max(1, _CHUNK_ELEMENTS // weight.shape[0])
        for start in range(0, size, rows):
            part = slice(start, min(start + rows, size))
            logits = torch.nn.functional.linear(hidden[part], weight, bias).to(precise)
            logits *= inverse_temperature[part, None]
            here = torch.nonzero((position >= part.start) & (position < part.stop)).flatten()
            chosen[here] = logits[position[here] - start, target[here]]
            total = torch.logsumexp(logits, dim=-1)
            logs = logits.sub_(total[:, None])
            probabilities = logs.exp()
            normalizer[part] = total
            entropy[part] = -torch.linalg.vecdot(probabilities, logs)
            if expected is not None:
                torch.matmul(probabilities.to(weight.dtype), weight, out=expected[part])
        ctx.save_for_backward(expected, weight, inverse_temperature, position, target)
        ctx.mark_non_differentiable(entropy)
        return chosen - normalizer[position], entropy

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        expected, weight, inverse_temperature, position, target = ctx.saved_tensors
        scaled = grads[0] * inverse_temperature[position]
        total = torch.zeros(expected.shape, dtype=scaled.dtype, device=expected.device)
        total.index_add_(0, position, scaled[:, None] * weight[target])
        sums = torch.zeros(len(expected), dtype=scaled.dtype, device=expected.device).index_add_(0, position, scaled)
        return (total - sums[:, None] * expected).to(expected.dtype), None, None, None, None, None


_log_probs: Any = _TargetLogProbs.apply


def target_log_probs(
    hidden: torch.Tensor,
    head: torch.nn.Linear,
    temperature: torch.Tensor,
    position: torch.Tensor,
    target: torch.Tensor,
    *,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of targets, differentiable by `hidden`, and entropies, which are not.

    Args:
        hidden: (S, D) hidden states of the distinct positions that are scored.
        head: the model's output embedding; frozen.
        temperature: (S,) what the logits of each position are divided by.
        position: (P,) which of the S positions predicts each target.
        target: (P,) token ids.
        dtype: of the products with the head.

    Returns:
        (P,) log-probabilities and (S,) entropies in nats; float32, or float64 for float64 hidden states.
    """
    assert not head.weight.requires_grad, "the output embedding is frozen: a LoRA on it would not be trained"
    precise = torch.promote_types(dtype, torch.float32)
    weight, bias = head.weight.to(dtype), None if head.bias is None else head.bias.to(dtype)
    with torch.autocast(hidden.device.type, enabled=False):
        log_probs, entropy = _log_probs(
            hidden.to(dtype), weight, bias, temperature.to(precise).reciprocal(), position, target
        )
    return log_probs, entropy
