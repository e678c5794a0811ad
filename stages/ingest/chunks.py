"""Things on their way through the disk, in as many files as there are places, so that one place is held at a time."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_HELD = 1 << 23
"""Bytes that wait in memory before they are written."""


class Chunks:
    """Writes things of plain types (texts, bytes, numbers, tuples), each to its place, into a folder of its own."""

    def __init__(self, folder: Path, places: int) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._waiting: list[list[Any]] = [[] for _ in range(places)]
        self._size = 0

    def add(self, place: int, thing: Any, size: int) -> None:
        """Take in a thing of about so many bytes."""
        self._waiting[place].append(thing)
        self._size += size
        if self._size > _HELD:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        for place, things in enumerate(self._waiting):
            if things:
                with (self._folder / f"{place:03d}").open("ab") as file:
                    marshal.dump(things, file)
                things.clear()
        self._size = 0


def chunks_in(folders: Iterable[Path], place: int) -> Iterator[Any]:
    """The things of one place in several folders, as they were added to each."""
    for folder in folders:
        path = folder / f"{place:03d}"
        if path.exists():
            with path.open("rb") as file:
                while file.peek(1):
                    yield from marshal.load(file)  # noqa: S302 - of our own making
