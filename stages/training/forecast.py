"""What the steps ahead will compute, before the first one is taken: micro-batches, tokens, and what is saved or lost.

Change from GRPO/TRL: TRL pads a fixed number of rows; here rows are dealt by the tokens that they really cost.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stages.training.buckets import Batch
from stages.training.members import Ids, Members
from stages.training.prefix_tree import common_prefix, lexicographic


@dataclass(frozen=True)
class Forecast:
    """Sums over the steps ahead. Copies are rows of their own, as in TRL."""

    steps: int
    micro_batches: int
    row_tokens: int
    """Of the members' whole rows, without padding."""
    forward_tokens: int
    """That the model computes."""
    distinct_tokens: int
    """Of the distinct rows of each step, without padding."""
    packed: bool

    @property
    def figures(self) -> dict[str, float | str]:
        """As progress shows them. Packed: how many tokens of rows one computed token stands for; plain: padding."""
        shown: dict[str, float | str] = {"tokens_per_step": self.row_tokens / self.steps}
        if self.packed:
            return shown | {"sharing": f"{self.row_tokens / self.forward_tokens:.1f}x"}
        return shown | {"padding": f"{1 - self.distinct_tokens / self.forward_tokens:.0%}"}


def forecast(
    members: Members, batches: Sequence[Batch], cut: Callable[[Batch], list[list[int]]], *, packed: bool
) -> Forecast:
    """What the batches will compute.

    Args:
        members: what the batches point to.
        batches: the steps ahead.
        cut: a batch's micro-batches, as positions in its members.
        packed: the path that computes them.
    """
    micro_batches = row_tokens = forward_tokens = distinct_tokens = 0
    for batch in batches:
        chosen = members.row[batch.members]
        row_tokens += sum(len(members.rows[row].prompt) + len(members.rows[row].completion) for row in chosen)
        fed = {row: members.rows[row].fed for row in np.unique(chosen)}
        distinct_tokens += sum(len(ids) for ids in {ids.tobytes(): ids for ids in fed.values()}.values())
        for part in cut(batch):
            micro_batches += 1
            forward_tokens += computed([fed[row] for row in np.unique(chosen[part])], packed=packed)
    return Forecast(len(batches), micro_batches, row_tokens, forward_tokens, distinct_tokens, packed)


def computed(fed: Sequence[Ids], *, packed: bool) -> int:
    """Token positions of one forward pass over sequences: the nodes of their prefix tree, or distinct padded rows."""
    if not packed:
        return len({ids.tobytes() for ids in fed}) * max(map(len, fed))
    order = [fed[index] for index in lexicographic(fed)]
    return len(order[0]) + sum(len(b) - common_prefix(a, b) for a, b in itertools.pairwise(order))
