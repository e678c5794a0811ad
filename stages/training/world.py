"""Several processes that take each optimizer step together: `torchrun` or `accelerate launch` start them.

The micro-batches of a step are dealt to the processes, gradients and sums are added up, and every process then takes
the same step. Process 0 leads: it alone writes; the others read what it has written. TRL and accelerate see one
process each: they would average over processes and count equal shares, where ours add up to the step's loss.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from schemas.errors import RecipeError
from stages.training import sharding

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", sharding.USED)
_DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"


class World:
    """The processes of this training run: `size` of them, this one being `rank`. One process is a world of its own.

    Where the base is `sharded` over them, all have to run the model equally often.
    """

    def __init__(self, rank: int = 0, size: int = 1, sharded: bool = False) -> None:
        self.rank, self.size, self.sharded = rank, size, sharded

    @property
    def leads(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def mine(self, parts: Sequence[Any]) -> Sequence[Any]:
        """This process's share of a list, dealt one by one."""
        return parts[self.rank :: self.size]

    def idle_rounds(self, parts: Sequence[Any]) -> int:
        """How often this process has to run the model for the others' sake, beside its share of a list."""
        return -(-len(parts) // self.size) - len(self.mine(parts)) if self.sharded else 0

    def agree(self, answer: bool) -> bool:
        """What process 0 answers."""
        return bool(self.gather(answer)[0])

    def gather(self, value: Any) -> list[Any]:
        """Every process's JSON value, in order of rank."""
        if self.size == 1:
            return [value]
        mine = torch.from_numpy(np.frombuffer(json.dumps(value).encode(), np.uint8).copy())
        lengths = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(mine)]))
        longest = max(int(length) for length in lengths)
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(texts, torch.nn.functional.pad(mine, (0, longest - len(mine))))
        return [json.loads(text[: int(length)].numpy().tobytes()) for text, length in zip(texts, lengths, strict=True)]

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def merge(self, sums: T) -> T:
        """Add up a dataclass of numbers, tables of numbers and lists of tensors over the processes."""
        if self.size == 1:
            return sums
        mine = {each.name: getattr(sums, each.name) for each in fields(sums)}
        every = self.gather({name: _plain(value) for name, value in mine.items()})
        return replace(sums, **{name: _total(value, [one[name] for one in every]) for name, value in mine.items()})

    def add_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Sum gradients over the processes. A parameter that no process has a gradient for keeps none."""
        if self.size == 1:
            return
        held = self.add(torch.tensor([float(parameter.grad is not None) for parameter in parameters])).tolist()
        moved = [parameter for parameter, holders in zip(parameters, held, strict=True) if holders]
        if not moved:
            return
        flat = torch.cat([(torch.zeros_like(one) if one.grad is None else one.grad).flatten() for one in moved])
        self.add(flat)
        for parameter, total in zip(moved, torch.split(flat, [one.numel() for one in moved]), strict=True):
            parameter.grad = total.view_as(parameter).clone()


def _plain(value: Any) -> Any:
    return [one.tolist() for one in value] if isinstance(value, list) else value


def _total(kind: Any, values: list[Any]) -> Any:
    if isinstance(kind, list):
        return [torch.tensor(one, dtype=torch.float64) for value in values for one in value]
    if isinstance(kind, dict):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: sum(value.get(name, 0.0) for value in values) for name in names}
    return sum(values)


@contextlib.contextmanager
def joined() -> Iterator[World]:
    """The world that this process was launched into, for the length of the block.

    Raises:
        RecipeError: for launches with DeepSpeed, whose engine would take the place of the trainer's own steps.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield World()
        return
    if os.environ.get(_DEEPSPEED, "false").lower() in {"1", "true"}:
        raise RecipeError(
            "launched with DeepSpeed, whose engine owns backward pass and optimizer, where a step here is the sum of "
            "uneven micro-batches. To shard the base, launch with --use_fsdp --fsdp_version 2 "
            "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"
        )
    rank, size, sharded = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sharding.wanted()
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    hidden = {name: os.environ.pop(name) for name in _LAUNCHED if name in os.environ}
    try:
        yield World(rank, size, sharded)
        dist.barrier()
    finally:
        os.environ.update(hidden)
        dist.destroy_process_group()
