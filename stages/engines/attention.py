"""Attention in parts: over keys that many queries share and over keys of their own, merged by log-sum-exp.

The parts of a softmax over disjoint sets of keys add up exactly when each is weighed by its share of the normalizer
(as in flash attention and cascade inference: Dao et al., arXiv 2205.14135; Ye et al., arXiv 2501.01005). So a prefix
that all rows share is read once for all of them, as one matrix product.
"""

from __future__ import annotations

from typing import Protocol

import torch

NAME = "mmgrpo_cascade"
"""Under which the attention is registered with transformers."""
_KERNEL_KEYS = 64
"""From so many keys on the fused CPU kernel beats plain products."""

Part = tuple[torch.Tensor, torch.Tensor]
"""Output (..., queries, head size) in the values' dtype and log-sum-exp (..., queries, 1) in float32."""


class Pass(Protocol):
    """One forward pass of a model: knows where each layer's keys and values are."""

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Store (batch, kv heads, tokens, size) keys and values; returns (batch, heads, tokens, size) outputs."""


def register() -> None:
    """Make the attention known to transformers; a model set to it needs the argument `cascade=Pass` in its calls."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attention)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    cascade: Pass,
    **_: object,
) -> tuple[torch.Tensor, None]:
    assert attention_mask is None
    layer = module.layer_idx
    assert isinstance(layer, int)
    return cascade.attend(layer, query, key, value, scaling).transpose(1, 2), None


def part(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, mask: torch.Tensor | None = None
) -> Part:
    """Attention of (batch, heads, queries, size) over (batch, heads, keys, size), unmasked or with an additive mask."""
    if queries.device.type == "cpu" and keys.shape[2] >= _KERNEL_KEYS:
        return _kernel(queries, keys, values, scale, mask=mask)
    scores = queries.float() @ keys.float().transpose(-1, -2) * scale
    if mask is not None:
        scores = scores + mask
    total = scores.logsumexp(-1, keepdim=True)
    return (scores - total).exp_().to(values.dtype) @ values, total


def causal_part(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> Part:
    """Attention of tokens over themselves and those before them; keys are repeated where heads share them."""
    groups = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
    if queries.device.type == "cpu":
        return _kernel(queries, keys, values, scale, causal=True)
    length = queries.shape[2]
    mask = torch.full((length, length), -torch.inf, device=queries.device).triu(1)
    return part(queries, keys, values, scale, mask)


def _kernel(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    *,
    mask: torch.Tensor | None = None,
    causal: bool = False,
) -> Part:
    """The kernel behind scaled_dot_product_attention on CPUs, which also tells the log-sum-exp."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    mask = None if mask is None else mask.to(queries.dtype)
    out, total = kernel(queries, keys, values, 0.0, causal, attn_mask=mask, scale=scale)
    return out, total.unsqueeze(-1)


def merge(parts: list[Part]) -> torch.Tensor:
    """One attention output from those over disjoint sets of keys."""
    if len(parts) == 1:
        return parts[0][0]
    totals = torch.stack([total for _, total in parts])
    shares = (totals - totals.amax(0)).exp_()
    shares /= shares.sum(0)
    merged = torch.zeros_like(parts[0][0], dtype=torch.float32)
    for (out, _), share in zip(parts, shares, strict=True):
        merged.addcmul_(out.float(), share)
    return merged.to(parts[0][0].dtype)


def fold(queries: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """(rows, heads, tokens, size) as (1, kv heads, queries, size): all rows on one set of keys."""
    rows, heads, tokens, size = queries.shape
    grouped = queries.reshape(rows, kv_heads, heads // kv_heads * tokens, size)
    return grouped.transpose(0, 1).reshape(1, kv_heads, -1, size)


def unfold(folded: Part, rows: int, heads: int, tokens: int) -> Part:
    """The way back from `fold`, for outputs and log-sum-exps alike."""
    back = [
        item.view(item.shape[1], rows, -1, item.shape[-1]).transpose(0, 1).reshape(rows, heads, tokens, -1)
        for item in folded
    ]
    return back[0], back[1]
