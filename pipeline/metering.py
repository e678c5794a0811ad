"""What an attempt at an artifact takes of this machine: time by the clock, of cores, and of GPUs."""

from __future__ import annotations

import os
import re
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Protocol

from pipeline.launching.settings import visible_gpus
from schemas.execution import Execution
from schemas.telemetry import Attempt

WITHOUT_MODEL = frozenset({"examples", "program", "base", "group", "ingest"})
"""Stages that no model of ours runs in."""
SCORING = frozenset({"logprobs", "train", "drift"})
"""Stages that run the model in this process, whatever samples."""
PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_PROC = Path("/proc")
_DRIVER = Path("/proc/driver/nvidia/gpus")


def core_seconds() -> float:
    """Processor time of this process, of its children that ended, and (on Linux) of those that still run."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + _of_descendants()


def _of_descendants() -> float:
    if not sys.platform.startswith("linux"):
        return 0.0
    ticks = os.sysconf("SC_CLK_TCK")
    times: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for folder in _PROC.iterdir():
        if folder.name.isdecimal() and (row := _stat(folder)) is not None:
            parent, spent = row
            times[int(folder.name)] = spent / ticks
            children.setdefault(parent, []).append(int(folder.name))
    found = list(children.get(os.getpid(), []))
    for process in found:
        found += children.get(process, [])
    return sum(times[process] for process in found)


def _stat(folder: Path) -> tuple[int, int] | None:
    """Parent, and ticks of a process with its ended children; None where it is gone."""
    try:
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), sum(map(int, fields[11:15]))


class Helpers(Protocol):
    """Processes that share the work, on machines that may be others."""

    @property
    def used(self) -> bool:
        """Whether they have had any of it."""

    @property
    def core_seconds(self) -> float | None:
        """Processor time of all of them; None while it is not known, or where one took its count with it."""

    @property
    def gpus(self) -> int | None:
        """GPUs that they hold; None where that changes."""


@dataclass
class Meter:
    """Counts from the moment it is made.

    Args:
        gpus: tells how many the work holds; asked when the meter is read, since to ask may take a library that only
            the work itself should load.
        processes: that share the work and were not started by this one, itself included.
    """

    gpus: Callable[[], int]
    processes: int = 1
    helpers: Helpers | None = None
    """Set once they are there."""
    _clock: float = field(default_factory=time.monotonic)
    _spent: float = 0.0
    _before: float = field(default_factory=core_seconds)
    _own: float = field(default_factory=time.process_time)

    def read(self, *, finished: bool = False) -> Attempt:
        """What has been spent so far."""
        now = core_seconds()
        self._spent += max(now - self._before, 0.0)  # a child that nobody waited for takes its time with it
        self._before = now
        helped = self.helpers is not None and self.helpers.used
        gpus = self.helpers.gpus if self.helpers is not None and helped else self.gpus()
        spent = self._with(self.helpers) if self.helpers is not None and helped else self._spent
        return Attempt(
            seconds=round(time.monotonic() - self._clock, 3),
            core_seconds=round(spent, 3) if self.processes == 1 and spent is not None else None,
            cores=_cores(),
            gpus=gpus,
            device=device_name() if gpus else None,
            finished=finished,
        )

    def _with(self, helpers: Helpers) -> float | None:
        """Of this process alone and of its helpers: what runs a cluster on this machine is a child too, and no work."""
        others = helpers.core_seconds
        return None if others is None else time.process_time() - self._own + others


def meter_of(stage: str, execution: Execution) -> Meter:
    """A meter for a stage, begun now."""
    shared = max(_processes(), execution.train.nodes) if stage == "train" else 1
    return Meter(lambda: gpus_of(stage, execution), shared)


def gpus_of(stage: str, execution: Execution) -> int:
    """GPUs of this machine that a stage holds while it runs. A user's own program may hold more."""
    elsewhere = execution.engine == "server" and stage not in SCORING
    if stage == "train" and execution.train.several:  # in processes that it starts: this one may not have torch
        size = execution.train.processes * execution.train.nodes
        return size if execution.device != "cpu" and visible_gpus() else 0
    if stage in WITHOUT_MODEL or elsewhere or "torch" not in sys.modules:  # nothing of ours uses one without torch
        return 0
    from stages.engines.factory import device_of

    if device_of(execution) == "cpu":
        return 0
    if stage == "train":
        return _processes()
    if execution.engine == "vllm" and stage not in SCORING:
        told = [execution.vllm.get(name) for name in PARALLEL]
        return prod(number for number in told if isinstance(number, int))
    return 1


def _processes() -> int:
    """Processes that `torchrun` or `accelerate launch` started for one stage."""
    told = os.environ.get("WORLD_SIZE", "1")
    return max(int(told), 1) if told.isdecimal() else 1


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def device_name() -> str | None:
    """The name of the GPU. CUDA is never started for it, since a later process of vLLM's could not use it then."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return str(torch.cuda.get_device_name())
    told = [file.read_text(errors="replace") for file in _DRIVER.glob("*/information")]
    names = {found.group(1).strip() for text in told if (found := re.search(r"^Model:(.*)$", text, re.MULTILINE))}
    return names.pop() if len(names) == 1 else None
