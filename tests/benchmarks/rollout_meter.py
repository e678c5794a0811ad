"""What a contestant of the sampling benchmark used: time inside its engine, processor time and memory."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.engines.interface import Engine, EngineUsage, Request

_INSIDE = ("generate", "add", "poll", "cancel")
"""Methods in which an engine works."""


class Meter:
    """Times an engine from the moment it is made, and notes what it is asked. One thread is in the engine at a time.

    Where the engine computes in processes of its own, what its caller does meanwhile counts as outside all the same.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.requests, self.inside = engine, list[Request](), 0.0
        self._depth = threading.local()
        for name in _INSIDE:
            if hasattr(engine, name):
                setattr(engine, name, self._timed(name, getattr(engine, name)))
        self._before = replace(engine.usage)
        self._began = (time.perf_counter(), cpu_seconds())

    def figures(self, rollouts: int | None) -> dict[str, Any]:
        """From the meter's making to now; `rollouts` program runs were made, if there is a program."""
        seconds, processor = time.perf_counter() - self._began[0], cpu_seconds() - self._began[1]
        used, calls = self._used(), len(self.requests)
        found = {
            "engine": self.engine.name,
            "seconds": seconds,
            "cpu_seconds": processor,
            "peak_mib": peak_bytes() / 2**20,
            "calls": calls,
            "prompt_tokens": used.prompt_tokens,
            "prefilled_tokens": used.prefilled_tokens,
            "completion_tokens": used.completion_tokens,
            "generated_per_second": used.completion_tokens / seconds,
            "prefilled_per_second": used.prefilled_tokens / seconds,
        }
        if rollouts is None:
            return found
        outside = {"rollouts": rollouts, "rollouts_per_minute": 60 * rollouts / seconds, "inside_seconds": self.inside}
        return found | outside | {"outside_ms_per_call": 1000 * (seconds - self.inside) / calls}

    def _used(self) -> EngineUsage:
        now, before = vars(self.engine.usage), vars(self._before)
        return EngineUsage(**{name: now[name] - before[name] for name in now})

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(*arguments: Any, **options: Any) -> Any:
            if getattr(self._depth, "value", 0):  # `generate` of a continuous engine adds and polls
                return method(*arguments, **options)
            if name == "generate":
                self.requests += arguments[0]
            elif name == "add":
                self.requests.append(arguments[1])
            self._depth.value = 1
            started = time.perf_counter()
            try:
                return method(*arguments, **options)
            finally:
                self.inside += time.perf_counter() - started
                self._depth.value = 0

        return timed


def cpu_seconds() -> float:
    """Processor time of this process and of those it started (an engine may live in one of its own). Linux."""
    fields = (_read(process, "stat").rpartition(")")[2].split() for process in _tree())  # a name may hold spaces
    return sum(sum(map(int, each[11:15])) for each in fields) / os.sysconf("SC_CLK_TCK")


def peak_bytes() -> int:
    """Sum of the largest resident sizes that this process and those it started ever had. Linux."""
    lines = [line for process in _tree() for line in _read(process, "status").splitlines()]
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _tree() -> list[int]:
    """This process and all below it."""
    found = [os.getpid()]
    for process in found:  # grows as children are found
        found += map(int, _read(process, "task/*/children").split())
    return found


def _read(process: int, name: str) -> str:
    """Files of a process, one after another; nothing of one that has ended meanwhile."""
    texts = []
    for file in Path(f"/proc/{process}").glob(name):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            texts.append(file.read_text())
    return " ".join(texts)
