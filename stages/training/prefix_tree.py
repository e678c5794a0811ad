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
class Blocks:
    """The tree cut into equal runs of queries, each with the keys that it may attend to."""

    queries: int
    """Queries of a block, C. The last block is padded."""
    keys: Ids
    """(blocks, K) node of every key; padding repeats node 0."""
    visible: npt.NDArray[np.bool_]
    """(blocks, C, K) whether a query sees a key. A padding query sees key 0, so that its softmax is finite."""


def cut(tree: PrefixTree, queries: int) -> Blocks:
    """Cut the tree into blocks of `queries` consecutive nodes.

    The keys of a block that starts at node s are the ancestors of s and the block itself: in depth-first order no
    later node of the block has an ancestor elsewhere. This keeps attention near the pairs that count: N·(depth + C)
    instead of N².
    """
    size = len(tree.tokens)
    count = -(-size // queries)
    first_nodes = np.array([start for start, _ in tree.runs])
    holders = np.searchsorted(first_nodes, np.arange(0, size, queries), side="right") - 1
    outer = [
        np.concatenate([tree.ancestors[run], np.arange(tree.runs[run][0], block * queries)])
        for block, run in enumerate(holders.tolist())
    ]
    width = max(len(nodes) for nodes in outer) + queries
    keys = np.zeros((count, width), np.int64)
    visible = np.zeros((count, queries, width), np.bool_)
    for block, nodes in enumerate(outer):
        keys[block, : len(nodes)] = nodes
        start = block * queries
        held = min(queries, size - start)
        keys[block, len(nodes) : len(nodes) + held] = np.arange(start, start + held)
        visible[block, held:, 0] = True
    for run, above in zip(tree.runs, tree.ancestors, strict=True):
        _show(visible, outer, run, above, queries)
    return Blocks(queries, keys, visible)


def _show(visible: npt.NDArray[np.bool_], outer: list[Ids], run: tuple[int, int], above: Ids, queries: int) -> None:
    """Mark what the nodes of one run see, block by block."""
    first, end = run
    for block in range(first // queries, (end - 1) // queries + 1):
        start, outside = block * queries, outer[block]
        low, high = max(first, start), min(end, start + queries)
        rows = slice(low - start, high - start)
        line = np.concatenate([above, np.arange(first, high)])
        before = line[line < start]
        visible[block, rows, : len(before)] = True
        within = line[(line >= start) & (line < low)] - start + len(outside)
        visible[block, rows, within] = True
        own = len(outside) + low - start
        visible[block, rows, own : own + high - low] = np.tri(high - low, dtype=np.bool_)
