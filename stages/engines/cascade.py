"""The passes of sampling with shared prompts: prefill of prefixes and prompts, decoding of many rows.

Three levels of keys and values: a prefix that many prompts share, the rest of a prompt that many samples share, and a
row's own tokens. Each is computed and held once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from stages.engines.attention import Part, causal_part, fold, merge, part, unfold


@dataclass
class Memory:
    """Keys and values, one (batch, kv heads, tokens, size) tensor each for every layer."""

    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)

    def first(self, tokens: int) -> Memory:
        """The first `tokens` tokens (a view)."""
        return Memory([keys[:, :, :tokens] for keys in self.keys], [values[:, :, :tokens] for values in self.values])

    def then(self, other: Memory) -> Memory:
        """This memory continued by another."""
        return Memory(
            [torch.cat(pair, dim=2) for pair in zip(self.keys, other.keys, strict=True)],
            [torch.cat(pair, dim=2) for pair in zip(self.values, other.values, strict=True)],
        )


class Prefill:
    """A batch of token sequences that continue one prefix, or none; right-padded, no mask needed as it is causal."""

    def __init__(self, prefix: Memory | None) -> None:
        self.prefix = prefix
        self.memory = Memory()

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """See `attention.Pass`."""
        assert layer == len(self.memory.keys)
        self.memory.keys.append(keys)
        self.memory.values.append(values)
        parts = [causal_part(queries, keys, values, scale)]
        if self.prefix is not None:
            parts.append(over_shared(queries, self.prefix.keys[layer], self.prefix.values[layer], scale))
        return merge(parts)


def over_shared(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> Part:
    """Attention of all rows over one (1, kv heads, tokens, size) memory."""
    rows, heads, tokens, _ = queries.shape
    return unfold(part(fold(queries, keys.shape[1]), keys, values, scale), rows, heads, tokens)


@dataclass
class Prompts:
    """Prompts prefilled together, and which rows continue which of them. Rows of one prompt are neighbours."""

    prefix: Memory | None
    memory: Memory
    lengths: list[int]
    """Tokens of each prompt in `memory`; what follows in it is padding."""
    owners: list[int]
    """For each row, in order: the prompt that it continues."""


class _Group:
    """Rows of some prompts as a rectangle (prompts, most rows of one), to read each prompt's keys once."""

    def __init__(self, prompts: Prompts, start: int, device: torch.device, dtype: torch.dtype) -> None:
        self.prompts, self.start, self.stop = prompts, start, start + len(prompts.owners)
        counts = [prompts.owners.count(prompt) for prompt in range(len(prompts.lengths))]
        width = max(counts)
        seen = [0] * len(counts)
        places = []
        for owner in prompts.owners:
            places.append(owner * width + seen[owner])
            seen[owner] += 1
        self.size = (len(counts), width)
        self.places = torch.tensor(places, device=device)
        takes = torch.zeros(len(counts) * width, dtype=torch.long, device=device)
        takes[self.places] = torch.arange(len(places), device=device)
        self.takes = takes
        self.mask = _padding_mask(prompts.lengths, prompts.memory.keys[0].shape[2], device, dtype)

    def over_prompts(self, layer: int, queries: torch.Tensor, scale: float) -> Part:
        """Attention of (rows, heads, 1, size) over the prompt of each row."""
        keys, values = self.prompts.memory.keys[layer], self.prompts.memory.values[layer]
        count, width = self.size
        rows, heads, _, size = queries.shape
        kv_heads = keys.shape[1]
        grid = queries.view(rows, kv_heads, -1, size)[self.takes].view(count, width, kv_heads, -1, size)
        grid = grid.transpose(1, 2).reshape(count, kv_heads, -1, size)
        found = part(grid, keys, values, scale, self.mask)
        back = [
            item.view(count, kv_heads, width, -1, item.shape[-1])
            .transpose(1, 2)
            .reshape(count * width, heads, 1, -1)[self.places]
            for item in found
        ]
        return back[0], back[1]


def _padding_mask(lengths: list[int], tokens: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor | None:
    if min(lengths) == tokens:
        return None
    padded = torch.arange(tokens, device=device) >= torch.tensor(lengths, device=device)[:, None]
    return torch.zeros(padded.shape, dtype=dtype, device=device).masked_fill(padded, -torch.inf)[:, None, None]


class Decode:
    """One new token for each row, step after step. Rows are those of the groups of prompts, in order."""

    def __init__(self, groups: Sequence[Prompts]) -> None:
        self.layers = len(groups[0].memory.keys)
        sample = groups[0].memory.keys[0]
        self.kv_heads, self.device, self.dtype = sample.shape[1], sample.device, sample.dtype
        rows = sum(len(group.owners) for group in groups)
        self.own = [sample.new_empty((2, rows, self.kv_heads, 16, sample.shape[3])) for _ in range(self.layers)]
        self.tokens = 0
        """Tokens of every row in `own`, the present one included: all rows go in step."""
        self._arrange(groups)

    def _arrange(self, groups: Sequence[Prompts]) -> None:
        self.groups: list[_Group] = []
        start = 0
        for prompts in groups:
            self.groups.append(_Group(prompts, start, self.device, self.dtype))
            start = self.groups[-1].stop

    def begin_step(self) -> None:
        """Make room for one more token of every row; memory doubles when it is full."""
        self.tokens += 1
        if self.tokens > self.own[0].shape[3]:
            self.own = [torch.cat([own, torch.empty_like(own)], dim=3) for own in self.own]

    def keep(self, rows: list[int]) -> None:
        """Drop all other rows, and prompts that none is left of."""
        kept: list[Prompts] = []
        for group in self.groups:
            here = [row - group.start for row in rows if group.start <= row < group.stop]
            if here:
                kept.append(_with_rows(group.prompts, here))
        index = torch.tensor(rows, device=self.device)
        self.own = [own[:, index] for own in self.own]
        self._arrange(kept)

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """See `attention.Pass`."""
        own = self.own[layer]
        own[0, :, :, self.tokens - 1], own[1, :, :, self.tokens - 1] = keys[:, :, 0], values[:, :, 0]
        shared = [self._over_group(layer, group, queries[group.start : group.stop], scale) for group in self.groups]
        rows, heads, _, size = queries.shape
        grouped = queries.view(rows, self.kv_heads, -1, size)
        out, total = part(grouped, own[0, :, :, : self.tokens], own[1, :, :, : self.tokens], scale)
        mine = (out.reshape(rows, heads, 1, size), total.reshape(rows, heads, 1, 1))
        return merge([mine, *self._columns(shared)])

    def _over_group(self, layer: int, group: _Group, queries: torch.Tensor, scale: float) -> list[Part]:
        queries = queries.contiguous()
        parts = [group.over_prompts(layer, queries, scale)]
        prefix = group.prompts.prefix
        if prefix is None:
            nothing = torch.full_like(parts[0][1], -torch.inf)
            return [*parts, (torch.zeros_like(parts[0][0]), nothing)]
        return [*parts, over_shared(queries, prefix.keys[layer], prefix.values[layer], scale)]

    @staticmethod
    def _columns(shared: list[list[Part]]) -> list[Part]:
        """The parts of all groups, one below the other."""
        if len(shared) == 1:
            return shared[0]
        columns = zip(*shared, strict=True)
        return [
            (torch.cat([out for out, _ in column]), torch.cat([total for _, total in column])) for column in columns
        ]


def _with_rows(prompts: Prompts, rows: list[int]) -> Prompts:
    owners = [prompts.owners[row] for row in rows]
    left = sorted(set(owners))
    if len(left) == len(prompts.lengths):
        return Prompts(prompts.prefix, prompts.memory, prompts.lengths, owners)
    index = torch.tensor(left, device=prompts.memory.keys[0].device)
    memory = Memory([keys[index] for keys in prompts.memory.keys], [values[index] for values in prompts.memory.values])
    return Prompts(prompts.prefix, memory, [prompts.lengths[i] for i in left], [left.index(owner) for owner in owners])
