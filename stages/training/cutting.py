"""Cuts an optimizer step into micro-batches of about a budget of computed tokens, by content alone.

Change from GRPO/TRL: TRL cuts by a fixed number of rows. Here what shares tokens stays together as far as it fits, and
what the loss needs at once, the calls of one trajectory, stays together always.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from stages.training.members import Ids, Members, Row
from stages.training.prefix_tree import common_prefix, lexicographic


def blocks_of(members: Members, chosen: Sequence[int]) -> npt.NDArray[np.intp]:
    """(m,) the block of each chosen member: one for the copies of a row, and for all calls and copies of a trajectory.

    Blocks are counted from 0, in the order of the rows that they start with.
    """
    unit = np.unique(members.unit[list(chosen)], return_inverse=True)[1]
    start = np.full(unit.max() + 1, len(members.rows))
    np.minimum.at(start, unit, members.row[list(chosen)])
    block: npt.NDArray[np.intp] = np.unique(start[unit], return_inverse=True)[1]
    return block


def split(blocks: Sequence[Sequence[Row]], budget: int, *, packed: bool) -> Iterator[list[int]]:
    """Cut blocks into micro-batches.

    Packed: in prefix order, so that what is shared stays together. Plain: by length, so that padding is small.
    A block over the budget is a micro-batch of its own.

    Yields:
        Indices into `blocks`; every index once.
    """
    order = lexicographic([block[0].fed for block in blocks])
    if not packed:
        order = sorted(order, key=lambda index: max(len(row.fed) for row in blocks[index]))
    batch: list[int] = []
    cost: _Nodes | _Rectangle = _Nodes() if packed else _Rectangle()
    for index in order:
        fed = [row.fed for row in blocks[index]]
        if cost.add(fed) > budget and batch:
            yield batch
            batch, cost = [], type(cost)()
            cost.add(fed)
        batch.append(index)
    if batch:
        yield batch


class _Nodes:
    """Counts the nodes of a prefix tree that grows."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.sequences: list[Ids] = []
        self.size = 0

    def add(self, sequences: Sequence[Ids]) -> int:
        """Nodes with these sequences too. In lexicographic order the closest relative of a sequence is beside it."""
        for ids in sequences:
            key = ids.astype(">u4").tobytes()
            place = bisect_left(self.keys, key)
            beside = self.sequences[max(0, place - 1) : place + 1]
            self.size += len(ids) - max((common_prefix(other, ids) for other in beside), default=0)
            self.keys.insert(place, key)
            self.sequences.insert(place, ids)
        return self.size


class _Rectangle:
    """Counts the tokens of rows padded to the longest."""

    def __init__(self) -> None:
        self.rows = self.width = 0

    def add(self, sequences: Sequence[Ids]) -> int:
        """Tokens with these rows too."""
        self.rows += len(sequences)
        self.width = max(self.width, *map(len, sequences))
        return self.rows * self.width
