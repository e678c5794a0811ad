"""FlexAttention over a prefix tree, for CUDA: the mask is the ancestor test, the kernel skips what nobody sees.

In the depth-first order of a tree, k is an ancestor of q (or q itself) exactly where k <= q < ends[k]. Which blocks
of 128 by 128 hold such a pair follows from the smallest and largest end of the keys, without ever forming N by N.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from stages.training.prefix_tree import PrefixTree

BLOCK = 128
LENGTHS = 1024
"""Trees are filled up to a multiple of this, so that few kernels are compiled."""


@dataclass(frozen=True)
class FlexLayout:
    """A tree's mask on a device."""

    mask: BlockMask
    size: int
    """Length that the mask is made for; nodes behind the tree's own see themselves only."""
    dtype: torch.dtype

    @classmethod
    def of(cls, tree: PrefixTree, dtype: torch.dtype, device: torch.device, lengths: int = LENGTHS) -> FlexLayout:
        """The mask of a tree."""
        count = len(tree.tokens)
        size = -(-count // lengths) * lengths
        ends = np.arange(1, size + 1)
        ends[:count] = tree.ends
        return cls(_block_mask(ends, device), size, dtype)


def why_not(config: Any, device: torch.device) -> str | None:
    """Why the block path attends instead of FlexAttention, or None when FlexAttention can.

    Args:
        config: the model's transformers config.
        device: where the model is.
    """
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if device.type != "cuda":
        return f"FlexAttention has no gradient on {device.type}"
    if width < 16 or width & (width - 1):
        return f"FlexAttention wants heads of 16, 32, 64, ... dimensions, the model's have {width}"
    return None


def _block_mask(ends: np.ndarray[Any, Any], device: torch.device) -> BlockMask:
    """The mask k <= q < ends[k], cut into blocks: those seen in full are told apart, and need no test."""
    by_block = ends.reshape(-1, BLOCK)
    starts = np.arange(len(by_block)) * BLOCK
    earlier = starts[:, None] > starts[None, :]
    some = earlier & (by_block.max(1)[None, :] > starts[:, None])
    full = earlier & (by_block.min(1)[None, :] >= starts[:, None] + BLOCK)
    partial = (some & ~full) | np.eye(len(starts), dtype=np.bool_)
    last = torch.from_numpy(ends).to(device)

    def sees(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (query < last[key])

    return BlockMask.from_kv_blocks(
        *_ordered(partial, device),
        *_ordered(full, device),
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(len(ends), len(ends)),
    )


def _ordered(chosen: np.ndarray[Any, Any], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """How many key blocks each query block has, (1, 1, B), and which, in front, (1, 1, B, B)."""
    order = np.argsort(~chosen, axis=1, kind="stable")
    count, indices = chosen.sum(1).astype(np.int32), order.astype(np.int32)
    return torch.from_numpy(count)[None, None].to(device), torch.from_numpy(indices)[None, None].to(device)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: FlexLayout, scale: float | None
) -> torch.Tensor:
    """Attention of query (1, H, N, d) over key and value (1, H_kv, N, d); returns (1, N, H, d)."""
    count = query.shape[2]
    query, key, value = (
        torch.nn.functional.pad(states.to(layout.dtype), (0, 0, 0, layout.size - count))
        for states in (query, key, value)
    )
    mixed: torch.Tensor = _kernel(query.device.type)(
        query, key, value, block_mask=layout.mask, scale=scale, enable_gqa=True
    )
    return mixed[:, :, :count].transpose(1, 2)


@cache
def _kernel(device: str) -> Any:
    """The compiled kernel; on a CPU, where it is for tests alone, the same without a compiler."""
    return torch.compile(flex_attention) if device == "cuda" else flex_attention
