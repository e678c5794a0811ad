"""Scores kept as they are made, for a process that goes on from where another was killed.

A line of a file for each, with a check sum: what a kill or a full disk has torn is scored again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import orjson


class Score(NamedTuple):
    """What a metric said of a rollout."""

    score: float
    parts: str | None
    """Canonical JSON."""


class KeptScores:
    """Scores by the names of what was scored.

    Args:
        path: of their file, which may be missing; its folder is there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        self._known = {name: Score(*said) for name, *said in filter(None, map(_read, lines))}
        if lines and lines[-1]:
            self._append(b"\n")  # behind a line that was cut off

    def get(self, name: str) -> Score | None:
        """The score of a name, if it is known."""
        return self._known.get(name)

    def keep(self, name: str, found: Score) -> None:
        """Write a score down."""
        self._known[name] = found
        text = orjson.dumps([name, *found])
        self._append(b"%08x %s\n" % (crc32(text), text))

    def _append(self, data: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(data)


def _read(line: bytes) -> list[Any] | None:
    """What a line holds; None where it is not whole."""
    mark, _, text = line.partition(b" ")
    if mark != b"%08x" % crc32(text):
        return None
    found: list[Any] = orjson.loads(text)
    return found
