"""Attention over a prefix tree: every token attends to its ancestors and itself.

Registered with transformers under `NAME`, beside its own attention functions: the model is called with
`tree=TreeLayout` and passes it on to every layer. Without a tree it is the usual causal SDPA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from stages.training.prefix_tree import Blocks

NAME = "mmgrpo_tree"


@dataclass(frozen=True)
class TreeLayout:
    """`Blocks` as tensors: C queries and K keys in each of n blocks."""

    queries: int
    keys: torch.Tensor
    """(n * K,) node of every key."""
    bias: torch.Tensor
    """(n, 1, C, K) 0 where a query sees a key, else minus infinity; in the dtype of the attention."""

    @classmethod
    def of(cls, blocks: Blocks, dtype: torch.dtype, device: torch.device) -> TreeLayout:
        """The layout on a device."""
        visible = torch.from_numpy(blocks.visible)
        bias = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf)
        return cls(blocks.queries, torch.from_numpy(blocks.keys).flatten().to(device), bias.unsqueeze(1).to(device))


class _TakeNodes(torch.autograd.Function):
    """Rows of (N, D) by index. The gradient of a row that many blocks take is summed in float32."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(index)
        ctx.nodes = source.shape[0]
        return source.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (index,), grad = ctx.saved_tensors, grads[0]
        wide = torch.promote_types(grad.dtype, torch.float32)
        total = torch.zeros(ctx.nodes, grad.shape[1], dtype=wide, device=grad.device)
        return total.index_add_(0, index, grad.to(wide)).to(grad.dtype), None


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tree: TreeLayout | None = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention as transformers calls it: query (1, H, N, d), key and value (1, H_kv, N, d); returns (1, N, H, d)."""
    if tree is None:
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return output
    _, heads, size, width = query.shape
    kv_heads, blocks, queries = key.shape[1], tree.bias.shape[0], tree.queries
    share = heads // kv_heads
    padded = pad(query[0], (0, 0, 0, blocks * queries - size)).view(kv_heads, share, blocks, queries, width)
    # The heads that share keys stand side by side as queries, so that keys are not repeated for them.
    folded = padded.permute(2, 0, 1, 3, 4).reshape(blocks, kv_heads, share * queries, width)
    mixed = scaled_dot_product_attention(
        folded,
        _block_rows(key, tree, blocks),
        _block_rows(value, tree, blocks),
        attn_mask=tree.bias.repeat(1, 1, share, 1) if share > 1 else tree.bias,
        scale=scaling,
    )
    unfolded = mixed.view(blocks, kv_heads, share, queries, width).permute(0, 3, 1, 2, 4)
    return unfolded.reshape(1, blocks * queries, heads, width)[:, :size], None


def _block_rows(states: torch.Tensor, tree: TreeLayout, blocks: int) -> torch.Tensor:
    """(1, H, N, d) keys or values as (n, H, K, d): those of every block."""
    _, heads, size, width = states.shape
    flat = states[0].transpose(0, 1).reshape(size, heads * width)
    taken = _TakeNodes.apply(flat, tree.keys)
    return taken.view(blocks, -1, heads, width).transpose(1, 2)


AttentionInterface.register(NAME, tree_attention)
