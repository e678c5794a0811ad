"""Tasks without a state, such as ranges of examples of the group stage: Ray's own tasks, few at once, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.on_ray.actor import Parcel, Said, Setting, do
from pipeline.on_ray.crew import brief
from pipeline.on_ray.members import Note
from pipeline.on_ray.named import named
from schemas.errors import StageError


@dataclass
class Tasks:
    """Makes tasks, and counts what they took."""

    setting: Setting
    at_once: int
    """Tasks that are given to Ray at once, done ones that wait for their turn included."""
    tries: int
    note: Note
    spent: float = 0.0
    lost: int = 0

    def map(self, step: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """See `Workers.map`."""
        import ray

        told, waiting = Parcel(ray.put(named(step))), deque[tuple[int, Parcel, Any]]()
        begin = ray.remote(do).options(num_cpus=1, max_retries=0)

        def send(task: Parcel) -> Any:
            return begin.remote(self.setting, told, task)

        try:
            for number, task in enumerate(tasks):
                packed = Parcel(ray.put(task))
                waiting.append((number, packed, send(packed)))
                if len(waiting) >= self.at_once:
                    yield self._done(*waiting.popleft(), send)
            while waiting:
                yield self._done(*waiting.popleft(), send)
        finally:
            for *_, reference in waiting:
                ray.cancel(reference, force=True)

    def _done(self, number: int, packed: Parcel, reference: Any, send: Callable[[Parcel], Any]) -> Any:
        """The result of a task, tried again where its process died."""
        import ray

        for tried in range(1, self.tries + 1):
            try:
                said: Said = ray.get(reference)
            except ray.exceptions.RayError as error:
                self.lost += 1
                if tried == self.tries:
                    raise StageError(
                        f"{tried} processes died while they worked on range {number}, the last one so: {brief(error)}. "
                        "A smaller group_rows needs less memory"
                    ) from None
                self.note(f"Ray: a task died ({brief(error)}); range {number} goes to another process")
                reference = send(packed)
                continue
            if said.refused is not None:
                raise said.refused.error()
            self.spent += said.core_seconds
            return said.result
        raise AssertionError(self.tries)
