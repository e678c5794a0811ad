"""Attention over a prefix tree: every token attends to its ancestors and itself.

Registered with transformers under `NAME`, beside its own attention functions: the model is called with
`tree=TreeLayout` (block by block) or `tree=FlexLayout` (FlexAttention, on CUDA) and passes it on to every layer.
Without a tree it is the usual causal SDPA.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from stages.training import flex
from stages.training.flex import FlexLayout
from stages.training.prefix_tree import Block

NAME = "mmgrpo_tree"


@dataclass(frozen=True)
class TreeLayout:
    """The tree's blocks as tensors, each with as many keys as it needs."""

    queries: tuple[int, ...]
    """Queries of each block, C."""
    keys: tuple[torch.Tensor, ...]
    """(K,) node of every key of a block."""
    bias: tuple[torch.Tensor, ...]
    """(S * C, K) 0 where a query sees a key, else minus infinity, in the dtype of the attention; repeated for the S
    query heads that share a key head."""

    @classmethod
    def of(cls, blocks: Sequence[Block], share: int, dtype: torch.dtype, device: torch.device) -> TreeLayout:
        """The layout on a device, for `share` query heads a key head."""

        def bias(block: Block) -> torch.Tensor:
            visible = torch.from_numpy(block.visible).repeat(share, 1)
            return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf).to(device)

        return cls(
            tuple(len(block.visible) for block in blocks),
            tuple(torch.from_numpy(block.keys).to(device) for block in blocks),
            tuple(map(bias, blocks)),
        )


class _TreeAttention(torch.autograd.Function):
    """Softmax attention block by block, weights computed again in the backward pass (as flash attention does).

    Query (H_kv, S, N, d), key and value (H_kv, N, d). The S heads that share keys stand side by side as queries of one
    product, so that keys are not repeated for them. Plain matrix products reach more of a CPU's bfloat16 units than
    its fused kernel. The gradient of a key that many blocks see is summed in float32.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  # autograd passes by position
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tree: TreeLayout, scale: float
    ) -> torch.Tensor:
        scaled = query * scale
        mixed = torch.empty_like(query)
        for part, keys, bias in _blocks(tree):
            weights = _weights(scaled[:, :, part].flatten(1, 2), key[:, keys], bias)
            mixed[:, :, part] = torch.matmul(weights, value[:, keys]).view_as(mixed[:, :, part])
        ctx.save_for_backward(scaled, key, value, mixed)
        ctx.tree, ctx.scale = tree, scale
        return mixed

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scaled, key, value, mixed = ctx.saved_tensors
        wide = torch.promote_types(key.dtype, torch.float32)
        by_key, by_value = (torch.zeros(key.shape, dtype=wide, device=key.device) for _ in range(2))
        by_query = torch.empty_like(scaled)
        level = torch.linalg.vecdot(grads[0].to(wide), mixed.to(wide)).to(key.dtype)
        for part, keys, bias in _blocks(ctx.tree):
            query, grad = (each[:, :, part].flatten(1, 2) for each in (scaled, grads[0]))
            seen = key[:, keys]
            weights = _weights(query, seen, bias)
            by_value.index_add_(1, keys, torch.matmul(weights.transpose(1, 2), grad).to(wide))
            by_score = torch.matmul(grad, value[:, keys].transpose(1, 2))
            by_score.sub_(level[:, :, part].flatten(1, 2)[..., None]).mul_(weights)
            by_query[:, :, part] = torch.matmul(by_score, seen).mul_(ctx.scale).view_as(by_query[:, :, part])
            by_key.index_add_(1, keys, torch.matmul(by_score.transpose(1, 2), query).to(wide))
        return by_query, by_key.to(key.dtype), by_value.to(key.dtype), None, None


def _blocks(tree: TreeLayout) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor]]:
    """Of every block: its queries, its keys, and what each sees of them."""
    start = 0
    for queries, keys, bias in zip(tree.queries, tree.keys, tree.bias, strict=True):
        yield slice(start, start + queries), keys, bias
        start += queries


def _weights(query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """(H_kv, S * C, K) attention weights of one block."""
    return torch.softmax(torch.matmul(query, key.transpose(1, 2)).add_(bias), dim=-1)


_attend: Any = _TreeAttention.apply


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tree: TreeLayout | FlexLayout | None = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention as transformers calls it: query (1, H, N, d), key and value (1, H_kv, N, d); returns (1, N, H, d)."""
    if tree is None:
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return output
    if isinstance(tree, FlexLayout):
        return flex.attend(query, key, value, tree, scaling), None
    query, key, value = (states[0].to(tree.bias[0].dtype).contiguous() for states in (query, key, value))
    heads, size, width = query.shape
    folded = query.view(key.shape[0], heads // key.shape[0], size, width)
    mixed: torch.Tensor = _attend(folded, key, value, tree, scaling)
    return mixed.view(1, heads, size, width).transpose(1, 2), None


AttentionInterface.register(NAME, tree_attention)
