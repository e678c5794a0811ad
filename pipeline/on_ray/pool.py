"""The processes of an ingest as actors, on a file system that all machines share."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pipeline.ingest_steps import make_part, read_piece, take_older
from pipeline.on_ray.crew import AHEAD, Crew
from pipeline.pool import Pool
from schemas.errors import DataError

WRITING = (read_piece, make_part, take_older)
"""Steps that leave something in the folder of their process; the others only read."""
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass
class Turns:
    """Results that wait until those before them are there."""

    ahead: int
    given: int = 0
    taken: int = 0
    waiting: dict[int, Any] = field(default_factory=dict)
    by: dict[int, Path | None] = field(default_factory=dict)
    """Whose folder a task has written into."""
    tasks: dict[int, Any] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """Whether so many were given that no further one is to begin."""
        return self.given - self.taken >= self.ahead

    def named(self, tasks: Iterable[Any]) -> Iterator[tuple[str, Any]]:
        """Tasks as they are given out."""
        for number, task in enumerate(tasks):
            self.given, self.tasks[number] = number + 1, task
            yield str(number), task

    def put(self, number: int, result: Any, leaves: Path | None) -> Iterator[Any]:
        """Take a result in; hands back those whose turn has come. Of a task that is done again, the first counts."""
        self.by[number] = leaves
        if number >= self.taken:
            self.waiting[number] = result
        while self.taken in self.waiting:
            yield self.waiting.pop(self.taken)
            self.taken += 1


class RayPool(Pool):
    """See `Pool`."""

    def __init__(self, crew: Crew, make: Callable[[], Any], actors: int) -> None:
        super().__init__(None, None, 1)
        self._crew, self._make, self._ahead = crew, make, 2 * AHEAD * actors

    def each(self, step: Callable[[Any, Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """See `Pool.each`. What an actor that died has left is taken away, and what it had done is done again."""
        turns = Turns(self._ahead)

        def spoilt(leaves: Path | None) -> dict[str, Any]:
            if leaves is None:
                return {}
            shutil.rmtree(leaves, ignore_errors=True)
            return {str(number): turns.tasks[number] for number, by in turns.by.items() if by == leaves}

        found = self._crew.stream(
            self._make,
            partial(one_by_one, step),
            turns.named(tasks),
            held_back=lambda: turns.full,
            spoilt=spoilt if step in WRITING else None,
        )
        seen = set[Path]()
        for name, result, leaves in found:
            if leaves is not None and leaves not in seen:
                _check_shared(leaves)
                seen.add(leaves)
            yield from turns.put(int(name), result, leaves)


def _check_shared(leaves: Path, within_s: float = 20.0) -> None:
    """Whether what an actor writes is seen here; a network file system may take its time.

    Raises:
        DataError: where it is not.
    """
    until = time.monotonic() + within_s
    while not leaves.is_dir():
        if time.monotonic() > until:
            raise DataError(
                f"an actor writes into {leaves}, which is not there on this machine: the folder of snapshots "
                "(--snapshots; of an address, its mirror in $MMGRPO_CACHE) must be on a file system that all machines "
                "share, or use --exec executor=local"
            )
        time.sleep(0.2)


def one_by_one(step: Callable[[Any, Any], Any], state: Any, tasks: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A step of an ingest as a crew has it."""
    for name, task in tasks.items():
        yield name, step(state, task)
