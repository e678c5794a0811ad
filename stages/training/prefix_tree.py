"""Packs token sequences into one, so that every distinct prefix is there once.

Change from GRPO/TRL: TRL computes each row on its own. Here rows that start with the same tokens share them: a
program's instructions and demos, then the example, then whatever its completions have in common; rows that are equal
become one. Hidden states depend on a token's ancestors alone, so the results are those of the separate rows.

Sorted sequences are the depth-first order of their prefix tree: each one adds only the tokens behind the longest
common prefix with the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PrefixTree:
    """One packed sequence of N nodes in depth-first order."""

    tokens: Ids
    """(N,) token ids."""
    depth: Ids
    """(N,) position of each node in its own sequence: the number of its ancestors."""
    paths: tuple[Ids, ...]
    """Per input sequence, the nodes of its tokens, root first."""
    ancestors: tuple[Ids, ...]
    """Per maximal run of nodes that continue one another, the nodes above the run; see `runs`."""
    runs: tuple[tuple[int, int], ...]
    """Half-open node ranges, in order: each starts where a sequence leaves the one before it."""
    ends: Ids
    """(N,) the node behind each node's last descendant: query q sees key k where k <= q < ends[k]."""


def common_prefix(left: Ids, right: Ids) -> int:
    """Length of the longest common prefix of two id arrays."""
    size = min(len(left), len(right))
    different = np.nonzero(left[:size] != right[:size])[0]
    return int(different[0]) if len(different) else size


def lexicographic(sequences: Sequence[Ids]) -> list[int]:
    """Indices of the sequences in lexicographic order of their ids (ids are not negative)."""
    keys = [np.asarray(sequence, dtype=">u4").tobytes() for sequence in sequences]
    return sorted(range(len(sequences)), key=lambda index: (keys[index], index))


def build(sequences: Sequence[Ids]) -> PrefixTree:
    """The prefix tree of the sequences.

    Args:
        sequences: at least one array of token ids each; none is empty.
    """
    tokens: list[Ids] = []
    depths: list[Ids] = []
    ancestors: list[Ids] = []
    runs: list[tuple[int, int]] = []
    left: list[tuple[Ids, int]] = []
    paths: list[Ids] = [np.empty(0, np.int64)] * len(sequences)
    size, before, path = 0, np.empty(0, np.int64), np.empty(0, np.int64)
    for index in lexicographic(sequences):
        ids = np.asarray(sequences[index], dtype=np.int64)
        shared = common_prefix(before, ids)
        fresh = len(ids) - shared
        above = path[:shared]
        left.append((path[shared:], size))
        path = np.concatenate([above, np.arange(size, size + fresh)])
        if fresh:
            tokens.append(ids[shared:])
            depths.append(np.arange(shared, len(ids)))
            ancestors.append(above)
            runs.append((size, size + fresh))
        paths[index], before, size = path, ids, size + fresh
    ends = np.empty(size, np.int64)
    for nodes, end in [*left, (path, size)]:
        ends[nodes] = end
    return PrefixTree(np.concatenate(tokens), np.concatenate(depths), tuple(paths), tuple(ancestors), tuple(runs), ends)


@dataclass(frozen=True)
class Block:
    """A run of consecutive nodes as queries, and the keys that they may attend to."""

    start: int
    """Node of the first query."""
    keys: Ids
    """(K,) nodes: what stands above the block, then the block's own nodes."""
    visible: npt.NDArray[np.bool_]
    """(C, K) whether a query sees a key."""


def cut(tree: PrefixTree, queries: int) -> list[Block]:
    """Cut the tree into blocks of `queries` consecutive nodes, the last one as long as what is left.

    The keys of a block that starts at node s are the ancestors of s and the block itself: in depth-first order no
    later node of the block has an ancestor elsewhere. This keeps attention near the pairs that count: N·(depth + C)
    instead of N².
    """
    size = len(tree.tokens)
    first_nodes = np.array([start for start, _ in tree.runs])
    starts = range(0, size, queries)
    holders = np.searchsorted(first_nodes, np.array(starts), side="right") - 1
    blocks = []
    for start, run in zip(starts, holders.tolist(), strict=True):
        own = np.arange(start, min(start + queries, size))
        keys = np.concatenate([tree.ancestors[run], np.arange(tree.runs[run][0], start), own])
        blocks.append(Block(start, keys, np.zeros((len(own), len(keys)), np.bool_)))
    for run_, above in zip(tree.runs, tree.ancestors, strict=True):
        _show(blocks, run_, above, queries)
    return blocks


def _show(blocks: list[Block], run: tuple[int, int], above: Ids, queries: int) -> None:
    """Mark what the nodes of one run see, block by block."""
    first, end = run
    for number in range(first // queries, (end - 1) // queries + 1):
        block = blocks[number]
        size, outside = len(block.visible), block.visible.shape[1] - len(block.visible)
        low, high = max(first, block.start), min(end, block.start + size)
        rows = slice(low - block.start, high - block.start)
        line = np.concatenate([above, np.arange(first, high)])
        before = line[line < block.start]
        block.visible[rows, : len(before)] = True
        within = line[(line >= block.start) & (line < low)] - block.start + outside
        block.visible[rows, within] = True
        own = outside + low - block.start
        block.visible[rows, own : own + high - low] = np.tri(high - low, dtype=np.bool_)
