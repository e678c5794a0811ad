"""Records on their way through the disk, in as many files as there are places, so that one place is held at a time.

A record is a line of JSON, and before it, as a line of its own, what it is found by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

_HELD = 1 << 23
"""Bytes that wait in memory before they are written."""


class Chunks:
    """Writes records, each to its place, into a folder of its own."""

    def __init__(self, folder: Path, places: int) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._waiting: list[list[bytes]] = [[] for _ in range(places)]
        self._size = 0

    def add(self, place: int, head: tuple[Any, ...], line: bytes) -> None:
        """Take in a record: JSON on one line, and texts, numbers and None that it is found by."""
        self._waiting[place] += (orjson.dumps(head), line)
        self._size += len(line)
        if self._size > _HELD:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        for place, lines in enumerate(self._waiting):
            if lines:
                with (self._folder / f"{place:03d}").open("ab") as file:
                    file.write(b"\n".join(lines) + b"\n")
                lines.clear()
        self._size = 0


def chunks_in(folders: Iterable[Path], place: int) -> Iterator[tuple[Any, ...]]:
    """The records of one place in several folders, as they were added to each: what each is found by, and its line."""
    for folder in folders:
        path = folder / f"{place:03d}"
        if path.exists():
            with path.open("rb") as file:
                for head in file:
                    yield (*orjson.loads(head), next(file).removesuffix(b"\n"))
