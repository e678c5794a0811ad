"""What a stage's actors are, as they are seen from here, and what is left for them to do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pipeline.on_ray.actor import Ready, Setting
from schemas.execution_ray import RaySection

Bundle = dict[str, Any]
Note = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """What each actor takes of the cluster, and how many there may be."""

    actors: int
    options: Mapping[str, Any]
    setting: Setting
    section: RaySection
    note: Note
    room: Callable[[], str]
    """What the cluster has, in words."""


@dataclass(eq=False)
class Member:
    """An actor, as it is seen from here."""

    handle: Any
    beginning: Any = None
    """What `begin` will say; None once it has."""
    state: int = 0
    """Number of the state that it has, or makes."""
    ready: Ready | None = None
    flights: dict[Any, Bundle] = field(default_factory=dict)
    """What it was given and has not handed back, in order, by the stream of its results."""
    spent: float = 0.0
    dead: bool = False


@dataclass
class Queue:
    """Tasks that nobody has yet. They are asked for when somebody is free: none is held in vain."""

    source: Iterator[tuple[str, Any]]
    size: int
    held_back: Callable[[], bool]
    again: deque[Bundle] = field(default_factory=deque)
    over: bool = False

    def take(self) -> Bundle:
        """The next tasks; none where there are none, or none for now."""
        if self.again:
            return self.again.popleft()
        if self.over or self.held_back():
            return {}
        found = dict(islice(self.source, self.size))
        self.over = len(found) < self.size
        return found

    @property
    def empty(self) -> bool:
        """Whether none will come any more."""
        return self.over and not self.again
