"""A tree of things and what became of them, as text for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from pipeline.texttable import cell

SHOWN = 4
"""Nodes of one kind that the tree shows of a longer list; JSON has all."""


@dataclass
class Node:
    """One thing: what it is, its id, and what is known of it."""

    kind: str
    id: str
    facts: dict[str, Any] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """As JSON values, children and all."""
        return {"kind": self.kind, "id": self.id, **self.facts, "of": [child.as_json() for child in self.children]}

    def __str__(self) -> str:
        facts = {name: value for name, value in self.facts.items() if value is not None}
        told = ", ".join(f"{name.replace('_', ' ')} {cell(value)}" for name, value in facts.items())
        return f"{self.kind} {cell(self.id)}" + (f": {told}" if told else "")


@dataclass
class Traced:
    """A thing with everything before and after it."""

    subject: Node
    upstream: list[Node]
    """What it was made from."""
    downstream: list[Node]
    """What came of it."""

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        about = self.subject.as_json()
        del about["of"]
        return {
            "subject": about,
            "upstream": [node.as_json() for node in self.upstream],
            "downstream": [node.as_json() for node in self.downstream],
        }

    def __str__(self) -> str:
        halves = [("made from", self.upstream), ("what came of it", self.downstream)]
        lines = [str(self.subject)]
        for place, (words, nodes) in enumerate(halves):
            last = place == len(halves) - 1
            lines.append(f"{'└─' if last else '├─'} {words}{'' if nodes else ': nothing'}")
            lines += _branches(nodes, "   " if last else "│  ")
        return "\n".join(lines)


def _branches(nodes: Sequence[Node], before: str) -> Iterator[str]:
    shown: list[Node | str] = []
    for kind, same in groupby(nodes, key=lambda node: node.kind):
        alike = list(same)
        cut = len(alike) > SHOWN + 1
        shown += alike[:SHOWN] if cut else alike
        shown += [f"… and {len(alike) - SHOWN} more of kind '{kind}' (--json has all)"] if cut else []
    for place, item in enumerate(shown):
        last = place == len(shown) - 1
        yield f"{before}{'└─' if last else '├─'} {item}"
        if isinstance(item, Node):
            yield from _branches(item.children, before + ("   " if last else "│  "))
