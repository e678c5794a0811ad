"""Actors that share the tasks of a stage. Each has a state; a task whose actor died goes to another one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.on_ray.actor import Actor, Parcel, Said
from pipeline.on_ray.members import Member, Queue, Wanted
from pipeline.on_ray.named import named
from schemas.errors import StageError

AHEAD = 2
"""Bundles of tasks that an actor has been given at most: the one that it works on, and one that waits there."""
UNREAD = 8
"""Results that wait to be taken from an actor at most; then it pauses."""
TICK_S = 1.0
TOLD_S = 20.0
"""After so many seconds without an actor it is said what is waited for."""
Spoilt = Callable[[Path | None], Mapping[str, Any]]


class Crew:
    """The actors of a stage. They start with the first tasks, and end with the stage."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._members: list[Member] = []
        self._states = 0
        self._made: Any = None
        self._make: Parcel | None = None
        self._tries: Counter[str] = Counter()
        self._lost_at_start = 0
        self._since = time.monotonic()
        self._told = False
        self.spent = 0.0
        """Processor time of actors that have left."""
        self.lost = 0
        """Actors that died, which took what they had spent with them."""
        self.closed = False
        self.holds_gpus = bool(wanted.options.get("num_gpus"))

    def stream(
        self,
        make: Callable[[], Any],
        step: Callable[..., Any],
        tasks: Iterable[tuple[str, Any]],
        *,
        bundle: int = 1,
        most: int | None = None,
        held_back: Callable[[], bool] = lambda: False,
        spoilt: Spoilt | None = None,
    ) -> Iterator[tuple[str, Any, Path | None]]:
        """Results by the names of their tasks, as they come, with the folder of the actor that made them.

        Args:
            make: see `Workers.stream`.
            step: likewise.
            tasks: named; drawn when an actor is free.
            bundle: tasks that an actor is given at once.
            most: actors that are worth having.
            held_back: whether no further task is to be begun for now.
            spoilt: told the folder of an actor that died; says which tasks that were done are to be done again. None
                where a result is all that a task leaves.

        Raises:
            MmgrpoError: what an actor refused; StageError when actors died over and over.
        """
        import ray

        self._begin_with(make)
        told = ray.put(named(step))
        queue = Queue(iter(tasks), bundle, held_back)
        while True:
            self._staff(min(self._wanted.actors, most or self._wanted.actors))
            for member in self._members:
                while member.ready and not member.dead and len(member.flights) < AHEAD and (given := queue.take()):
                    options = {"num_returns": "streaming", "_generator_backpressure_num_objects": UNREAD}
                    member.flights[member.handle.work.options(**options).remote(told, given)] = given
            flying = {flight: member for member in self._members for flight in member.flights}
            if not flying and queue.empty:
                return
            starting = {member.beginning: member for member in self._members if member.beginning is not None}
            if not flying and not starting and any(member.ready for member in self._members):
                continue
            landed, _ = ray.wait([*flying, *starting], num_returns=1, timeout=TICK_S)
            if not landed:
                self._watch()
                continue
            if landed[0] in starting:
                self._started(starting[landed[0]])
                continue
            member = flying[landed[0]]
            found = self._next(member, landed[0])
            if isinstance(found, Said):
                member.flights[landed[0]].pop(found.name, None)
                yield found.name, found.result, member.ready.leaves if member.ready else None
            elif found is not None:
                leaves = member.ready.leaves if member.ready else None
                for said in self._bury(member, landed[0], found, queue, spoilt):
                    yield said.name, said.result, leaves

    def _begin_with(self, make: Callable[[], Any]) -> None:
        import ray

        if self._made is not None and self._made == make:
            return
        self._made, self._make, self._states = make, Parcel(ray.put(named(make))), self._states + 1
        for member in self._members:
            member.ready = None
            self._begin(member)

    def _begin(self, member: Member) -> None:
        member.state = self._states
        member.beginning = member.handle.begin.remote(self._states, self._make)

    def _staff(self, number: int) -> None:
        """Have so many actors asked for. Which of them find a place, and when, is Ray's to say."""
        import ray

        self._members = [member for member in self._members if not member.dead or member.flights]
        kind = ray.remote(Actor).options(max_restarts=0, max_concurrency=1, **self._wanted.options)
        while sum(not member.dead for member in self._members) < number:
            member = Member(kind.remote(self._wanted.setting))
            self._members.append(member)
            self._begin(member)

    def _started(self, member: Member) -> None:
        import ray

        beginning, member.beginning = member.beginning, None
        try:
            said: Said = ray.get(beginning)
        except ray.exceptions.RayError as error:
            self._lose(member)
            self._lost_at_start += 1
            if self._lost_at_start > self._wanted.section.tries:
                raise StageError(
                    f"{self._lost_at_start} actors died before they could begin, the last one so: {brief(error)}. Is "
                    "mmgrpo installed on all machines, and is there memory for the model?"
                ) from None
            return
        if said.refused is not None:
            raise said.refused.error()
        self._lost_at_start = 0
        member.ready, member.spent = said.result, said.core_seconds
        self._since = time.monotonic()

    def _next(self, member: Member, flight: Any) -> Said | Exception | None:
        """The next result of a stream; None at its end; the error of an actor that died."""
        import ray

        try:
            said: Said = ray.get(next(flight))
        except StopIteration:
            del member.flights[flight]
            return None
        except ray.exceptions.RayError as error:
            died: Exception = error
            return died
        if said.refused is not None:
            raise said.refused.error()
        member.spent = max(member.spent, said.core_seconds)
        self._since = time.monotonic()
        return said

    def _bury(self, member: Member, landed: Any, error: Exception, queue: Queue, spoilt: Spoilt | None) -> list[Said]:
        """An actor died: what it was given, and what went with it, goes to others. Returns what it had still said."""
        self._lose(member)
        given = {name: task for bundle in member.flights.values() for name, task in bundle.items()}
        said: list[Said] = []
        at_work: list[str] | None = None
        for flight in list(member.flights):  # in the order in which they were to be worked on
            left = member.flights[flight]
            if (flight is landed or self._drained(member, flight, said)) and at_work is None:
                at_work = list(left)
        back = {name: task for bundle in member.flights.values() for name, task in bundle.items()}
        member.flights.clear()
        if spoilt is not None:
            back = given | dict(spoilt(member.ready.leaves if member.ready else None))
            said = []
        self._blame(at_work or [], error)
        queue.again.extend({name: task} for name, task in back.items())
        self._wanted.note(f"Ray: an actor died ({brief(error)}); {len(back)} tasks of it go to others")
        return said

    def _drained(self, member: Member, flight: Any, said: list[Said]) -> bool:
        """Take what an actor had said before it died; whether it died within this flight, or before it."""
        while isinstance(found := self._next(member, flight), Said):
            member.flights[flight].pop(found.name, None)
            said.append(found)
        return found is not None

    def _blame(self, names: Iterable[str], error: Exception) -> None:
        for name in names:
            self._tries[name] += 1
            if self._tries[name] >= self._wanted.section.tries:
                raise StageError(
                    f"{self._tries[name]} actors died while they worked on {name}, the last one so: {brief(error)}. "
                    "What was committed is kept. Give an actor more memory (ray.memory_gib) or fewer runs at once "
                    "(concurrency), or look at what the program does on that example"
                )

    def _lose(self, member: Member) -> None:
        member.dead, member.beginning = True, None
        self.lost += 1

    def _watch(self) -> None:
        """Nothing has come for a while. Where no actor has a place, say so, and end when that has lasted."""
        if any(member.ready and not member.dead for member in self._members):
            self._since, self._told = time.monotonic(), False
            return
        waited, section = time.monotonic() - self._since, self._wanted.section
        wants = ", ".join(f"{name} {value:g}" for name, value in self._wanted.options.items() if value)
        if waited > section.patience_s:
            raise StageError(
                f"no actor ({wants}) could begin within {section.patience_s:g} s (ray.patience_s); the cluster has "
                f"{self._wanted.room()}. Ask for less (ray.cpus, ray.gpus, ray.memory_gib), or add machines"
            )
        if waited > TOLD_S and not self._told:
            self._told = True
            self._wanted.note(f"Ray: waiting for an actor ({wants}) to begin; the cluster has {self._wanted.room()}")

    def close(self, *, kindly: bool) -> None:
        """End all actors; `kindly`: after they have let go of what they hold."""
        import ray

        idle = [member for member in self._members if kindly and member.ready and not member.dead]
        leaving = {member.handle.leave.remote(): member for member in idle if not member.flights}
        if leaving:
            gone, _ = ray.wait(list(leaving), num_returns=len(leaving), timeout=30.0)
            for reference in gone:
                try:
                    leaving[reference].spent = ray.get(reference)
                except ray.exceptions.RayError:
                    self.lost += 1
        for member in self._members:
            self.spent += member.spent
            ray.kill(member.handle)
            self.lost += bool(member.flights)
        self._members.clear()
        self.closed = True


def brief(error: BaseException) -> str:
    """What Ray says, on one line that is not endless."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = next((line for line in reversed(lines) if "Error" in line or "exit" in line), lines[0] if lines else "")
    return f"{type(error).__name__}: {text[:300]}"
