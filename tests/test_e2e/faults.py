"""Run the command line and kill this process with SIGKILL at the n-th event, to see what a dead process leaves.

Events are the moments at which something reaches the disk or a stage gets further. Forked from a parent that has
imported everything already, one run of the tiny recipe takes a second or two.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

POINTS = [
    ("pipeline.store", "PartialArtifact", "commit_shard"),
    ("pipeline.store", "PartialArtifact", "progress"),
    ("pipeline.store", "PartialArtifact", "telemetry"),
    ("pipeline.store", "PartialArtifact", "_complete"),
    ("pipeline.store", None, "_sync"),
    ("pipeline.runfile", None, "write_run"),
    ("pathlib", "Path", "replace"),
    ("pathlib", "Path", "unlink"),
]


class Counter:
    """Counts events, and kills this process at one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self.kill_at, self.seen = kill_at, 0

    def event(self) -> None:
        self.seen += 1
        if self.seen == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def counting(counter: Counter, log: Path) -> Iterator[None]:
    """Count before and after each point; note every committed shard and every example that is sampled in `log`."""
    undo: list[tuple[Any, str, Any]] = []

    def wrap(owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            counter.event()
            result = original(*arguments, **options)
            if name == "commit_shard":
                _note(log, f"commit {arguments[0]._final.name} {arguments[1]}")
            counter.event()
            return result

        undo.append((owner, name, original))
        setattr(owner, name, wrapped)

    for module, owner, name in POINTS:
        __import__(module)
        target = sys.modules[module]
        wrap(getattr(target, owner) if owner else target, name)
    try:
        yield
    finally:
        for owner, name, original in undo:
            setattr(owner, name, original)


def _note(log: Path, line: str) -> None:
    with log.open("a") as file:
        file.write(line + "\n")


def in_child(work: Callable[[], int]) -> int:
    """Do some work in a forked child. Returns its exit code, negative for the signal that killed it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
