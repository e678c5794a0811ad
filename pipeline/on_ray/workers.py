"""The workers of one stage: actors for what has a state, tasks for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeVar

from pipeline.on_ray.crew import Crew
from pipeline.on_ray.members import Wanted
from pipeline.on_ray.ranges import Tasks
from pipeline.pool import Pool

State = TypeVar("State")
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass
class RayWorkers:
    """See `stages.contract.Workers`. Nothing is started before it is needed.

    Args:
        wanted: connects to the cluster, and says what an actor takes of it.
        concurrency: program runs that an actor has in flight.
    """

    wanted: Callable[[], Wanted]
    concurrency: int
    tasks_at_once: Callable[[], int]
    _crew: Crew | None = None
    _tasks: Tasks | None = None

    @property
    def crew(self) -> Crew:
        """The actors."""
        if self._crew is None:
            self._crew = Crew(self.wanted())
        return self._crew

    def stream(
        self,
        make: Callable[[], State],
        step: Callable[[State, Mapping[str, Task]], Iterator[tuple[str, Result]]],
        tasks: Mapping[str, Task],
        *,
        runs: int,
    ) -> Iterator[tuple[str, Result]]:
        """See `stages.contract.Workers`."""
        wanted = self.wanted()
        size = wanted.section.examples or self._bundle(len(tasks), wanted.actors, runs)
        most = ceil(len(tasks) / size)
        for name, result, _ in self.crew.stream(make, step, tasks.items(), bundle=size, most=most):
            yield name, result

    def _bundle(self, tasks: int, actors: int, runs: int) -> int:
        """Enough for the engine to be full for a while, and a second helping for every actor."""
        return max(1, min(ceil(2 * self.concurrency / max(1, runs)), ceil(tasks / (2 * actors))))

    def map(self, step: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """See `stages.contract.Workers`."""
        if self._tasks is None:
            wanted = self.wanted()
            self._tasks = Tasks(wanted.setting, self.tasks_at_once(), wanted.section.tries, wanted.note)
        yield from self._tasks.map(step, tasks)

    def close(self, *, kindly: bool) -> None:
        """End the actors."""
        if self._crew is not None:
            self._crew.close(kindly=kindly)

    def pool(self, make: Callable[[], Any]) -> Pool:
        """Actors as the processes of an ingest."""
        from pipeline.on_ray.pool import RayPool

        return RayPool(self.crew, make, self.wanted().actors)

    @property
    def used(self) -> bool:
        """See `pipeline.metering.Helpers`."""
        return self._crew is not None or self._tasks is not None

    @property
    def core_seconds(self) -> float | None:
        """See `pipeline.metering.Helpers`: known once all have ended."""
        parts = [part for part in (self._crew, self._tasks) if part is not None]
        if any(part.lost for part in parts) or (self._crew is not None and not self._crew.closed):
            return None
        return sum(part.spent for part in parts)

    @property
    def gpus(self) -> int | None:
        """See `pipeline.metering.Helpers`: none, or as many as actors happen to have a place."""
        holds = self._crew is not None and self._crew.holds_gpus
        return None if holds else 0


@dataclass
class Several:
    """The workers that one piece of work has had, one after the other; see `pipeline.metering.Helpers`."""

    workers: list[RayWorkers]

    @property
    def used(self) -> bool:
        """Whether any had some of it."""
        return any(one.used for one in self.workers)

    @property
    def core_seconds(self) -> float | None:
        """The sum, where it is known of all."""
        told = [one.core_seconds for one in self.workers]
        known = [value for value in told if value is not None]
        return sum(known) if len(known) == len(told) else None

    @property
    def gpus(self) -> int | None:
        """None where any holds some."""
        return 0 if all(one.gpus == 0 for one in self.workers) else None
