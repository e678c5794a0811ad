"""Which prompts share a prefix, and the prefixes kept from call to call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from stages.engines.cascade import Memory

Ids = tuple[int, ...]

_LEAST = 16
"""A shorter common prefix is not worth a pass of its own."""
_PASS_COST = 128
"""What one more cluster costs beside its tokens, in tokens."""
_DEPTH = 16


@dataclass(frozen=True)
class Cluster:
    """Prompts (sorted, distinct) and how many first tokens they share; each has at least one token more."""

    prompts: tuple[Ids, ...]
    shared: int


def common_prefix(first: Ids, second: Ids) -> int:
    """How many first tokens two sequences share."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def clusters(prompts: Sequence[Ids]) -> list[Cluster]:
    """Sort distinct prompts into clusters so that few tokens are computed: each shared prefix counts once."""
    ordered = sorted(set(prompts))
    common = [common_prefix(first, second) for first, second in pairwise(ordered)]
    return _best(ordered, common, _DEPTH)[1]


def _best(prompts: list[Ids], common: list[int], depth: int) -> tuple[int, list[Cluster]]:
    """The cheapest clusters of sorted prompts and their cost: kept together, or split where they share the least."""
    shared = min([*common, min(map(len, prompts)) - 1])
    if shared < _LEAST:
        shared = 0
    together = _PASS_COST + shared + sum(len(prompt) - shared for prompt in prompts)
    whole = [Cluster(tuple(prompts), shared if len(prompts) > 1 else 0)]
    if len(prompts) == 1:
        return _PASS_COST + len(prompts[0]), whole
    least = min(common)
    if depth == 0 or max(common) == least:
        return together, whole
    cost, start = 0, 0
    split: list[Cluster] = []
    for stop in [place + 1 for place, tokens in enumerate(common) if tokens == least] + [len(prompts)]:
        part_cost, part = _best(prompts[start:stop], common[start : stop - 1], depth - 1)
        cost, split, start = cost + part_cost, split + part, stop
    return (cost, split) if cost < together else (together, whole)


class PrefixStore:
    """The memories of the prefixes used last, by adapter; at most `tokens` tokens in all."""

    def __init__(self, tokens: int) -> None:
        self.limit = tokens
        self._kept: OrderedDict[tuple[str, Ids], Memory] = OrderedDict()

    def longest(self, adapter: str, ids: Ids) -> tuple[int, Memory | None]:
        """The longest known beginning of `ids`: how many tokens, and their memory. Short ones do not count."""
        best, key = 0, None
        for known in self._kept:
            if known[0] == adapter and (length := common_prefix(known[1], ids)) > best:
                best, key = length, known
        if key is None or best < _LEAST:
            return 0, None
        self._kept.move_to_end(key)
        return best, self._kept[key].first(best)

    def put(self, adapter: str, ids: Ids, memory: Memory) -> None:
        """Keep a memory; forget those it continues and, when there are too many tokens, those not used for longest."""
        for known in [known for known in self._kept if known[0] == adapter and known[1] == ids[: len(known[1])]]:
            del self._kept[known]
        self._kept[adapter, ids] = memory
        while len(self._kept) > 1 and sum(len(key[1]) for key in self._kept) > self.limit:
            self._kept.popitem(last=False)
