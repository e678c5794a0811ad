"""Records on their way through the disk, in as many files as there are places, so that one place is held at a time.

A record is a line of JSON, and before it, as a line of its own, what it is found by. What was finished is noted in a
journal beside them, so that a later process can take it up: see `taken_up`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson

JOURNAL = "journal"
_HELD = 1 << 23
"""Bytes that wait in memory before they are written."""
_BLOCK = 1 << 16
"""Bytes of lines that are read at once, and the rest of the last of them."""


class Chunks:
    """Writes records, each to its place, into a folder of its own."""

    def __init__(self, folder: Path, places: int) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._waiting: list[list[bytes]] = [[] for _ in range(places)]
        self._size = 0
        self._ends, self._sums = [0] * places, [0] * places

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
                self.append(place, b"\n".join(lines) + b"\n")
                lines.clear()
        self._size = 0

    def append(self, place: int, data: bytes) -> None:
        """Write whole records as they lie in a file."""
        with (self._folder / f"{place:03d}").open("ab") as file:
            file.write(data)
        self._ends[place] += len(data)
        self._sums[place] = crc32(data, self._sums[place])

    def done(self, task: str, told: Any) -> None:
        """Note that a task's records are all there, and what is told of it: a JSON value."""
        self.flush()
        with (self._folder / JOURNAL).open("ab") as file:
            file.write(orjson.dumps([task, told, self._ends, self._sums]) + b"\n")


def chunks_in(folders: Iterable[Path], place: int) -> Iterator[tuple[Any, ...]]:
    """The records of one place in several folders, as they were added to each: what each is found by, and its line."""
    for folder in folders:
        path = folder / f"{place:03d}"
        if path.exists():
            with path.open("rb") as file:
                while lines := file.readlines(_BLOCK):
                    if len(lines) % 2:
                        lines.append(file.readline())
                    heads = orjson.loads(b"[" + b",".join(lines[::2]) + b"]")
                    for head, line in zip(heads, lines[1::2], strict=True):
                        yield (*head, line[:-1])
