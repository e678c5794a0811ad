"""What made what in a run, as plain data: its artifacts as boxes, and the inputs of each as links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mark = Literal["", "missing", "deleted", "tainted"]


@dataclass(frozen=True)
class Box:
    """One artifact that the run chose."""

    name: str
    """Unique in the run: where run.json keeps it."""
    label: str
    """What a person calls it."""
    column: int | None
    """Its iteration; an evaluation stands with the one that made its policy. None for the set-up."""
    stage: str
    key: str
    digest: str | None
    """None when it is not there."""
    seconds: float | None
    mark: Mark
    """`missing`: named by run.json but not there (yet). `deleted`: by request. `tainted`: it holds, or learnt from,
    traces that were to be forgotten."""


@dataclass(frozen=True)
class Link:
    """One artifact was an input of another, by the other's manifest."""

    source: str
    target: str
    role: str


@dataclass(frozen=True)
class Chain:
    """The artifacts of a run in the order in which it meets them."""

    boxes: tuple[Box, ...]
    links: tuple[Link, ...]

    @property
    def columns(self) -> list[int]:
        """The iterations that have boxes."""
        return sorted({box.column for box in self.boxes if box.column is not None})

    def marked(self, mark: Mark) -> int:
        """How many boxes have a mark."""
        return sum(box.mark == mark for box in self.boxes)
