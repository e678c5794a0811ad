"""Attention over a prefix tree: every token attends to its ancestors and itself.

Registered with transformers under `NAME`, beside its own attention functions: the model is called with
`tree=TreeLayout` (block by block) or `tree=FlexLayout` (FlexAttention, on CUDA) and passes it on to every layer.
Without a tree it is the usual causal SDPA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from stages.training import flex
from stages.training.flex import FlexLayout
from stages.training.prefix_tree import Blocks

NAME = "mmgrpo_tree"


@dataclass(frozen=True)
class TreeLayout:
    """`Blocks` as tensors: C queries and K keys in each of n blocks."""

    queries: int
    keys: torch.Tensor
    """(n * K,) node of every key."""
    bias: torch.Tensor
    """(n, 1, S * C, K) 0 where a query sees a key, else minus infinity, in the dtype of the attention; repeated for the
    S query heads that share a key head."""

    @classmethod
    def of(cls, blocks: Blocks, share: int, dtype: torch.dtype, device: torch.device) -> TreeLayout:
        """The layout on a device, for `share` query heads a key head."""
        visible = torch.from_numpy(blocks.visible).repeat(1, share, 1)
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


class _BlockAttention(torch.autograd.Function):
    """Softmax attention block by block, scores recomputed in the backward pass (as flash attention does).

    Plain matrix products reach more of a CPU's bfloat16 units than its fused kernel: about half the time of SDPA.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  # autograd passes by position
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor, scale: float
    ) -> torch.Tensor:
        mixed = torch.empty_like(query)
        for block in range(len(query)):
            weights = _weights(query[block], key[block], bias[block], scale)
            torch.matmul(weights, value[block], out=mixed[block])
        ctx.save_for_backward(query, key, value, bias, mixed)
        ctx.scale = scale
        return mixed

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, bias, mixed = ctx.saved_tensors
        by_query, by_key, by_value = map(torch.empty_like, (query, key, value))
        for block, grad in enumerate(grads[0]):
            weights = _weights(query[block], key[block], bias[block], ctx.scale)
            torch.matmul(weights.transpose(-1, -2), grad, out=by_value[block])
            level = torch.linalg.vecdot(grad.float(), mixed[block].float()).to(grad.dtype)[..., None]
            by_score = torch.matmul(grad, value[block].transpose(-1, -2)).sub_(level).mul_(weights).mul_(ctx.scale)
            torch.matmul(by_score, key[block], out=by_query[block])
            torch.matmul(by_score.transpose(-1, -2), query[block], out=by_key[block])
        return by_query, by_key, by_value, None, None


def _weights(query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor, scale: float) -> torch.Tensor:
    """(H, C, K) attention weights of one block."""
    return torch.softmax(torch.matmul(query * scale, key.transpose(-1, -2)).add_(bias), dim=-1)


_take_nodes: Any = _TakeNodes.apply
_block_attention: Any = _BlockAttention.apply


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
    query, key, value = (states.to(tree.bias.dtype) for states in (query, key, value))
    _, heads, size, width = query.shape
    kv_heads, blocks, queries = key.shape[1], tree.bias.shape[0], tree.queries
    share = heads // kv_heads
    padded = pad(query[0], (0, 0, 0, blocks * queries - size)).view(kv_heads, share, blocks, queries, width)
    # The heads that share keys stand side by side as queries, so that keys are not repeated for them.
    folded = padded.permute(2, 0, 1, 3, 4).reshape(blocks, kv_heads, share * queries, width)
    keys, values = _block_rows(key, tree, blocks), _block_rows(value, tree, blocks)
    if query.device.type == "cpu":
        mixed = _block_attention(folded, keys, values, tree.bias, scaling)
    else:
        mixed = scaled_dot_product_attention(folded, keys, values, attn_mask=tree.bias, scale=scaling)
    unfolded = mixed.view(blocks, kv_heads, share, queries, width).permute(0, 3, 1, 2, 4)
    return unfolded.reshape(1, blocks * queries, heads, width)[:, :size], None


def _block_rows(states: torch.Tensor, tree: TreeLayout, blocks: int) -> torch.Tensor:
    """(1, H, N, d) keys or values as (n, H, K, d): those of every block."""
    _, heads, size, width = states.shape
    flat = states[0].transpose(0, 1).reshape(size, heads * width)
    taken: torch.Tensor = _take_nodes(flat, tree.keys)
    return taken.view(blocks, -1, heads, width).transpose(1, 2)


AttentionInterface.register(NAME, tree_attention)
