"""Records that an earlier process left when it was killed: what it had finished is not made again.

Each folder of `Chunks` is looked at for itself. Its journal says which tasks were finished, and how far its files
reached then. What lies behind that is cut off; what belongs to tasks that nobody asks for any more is taken out.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4
from zlib import crc32

import orjson

from stages.ingest.chunks import JOURNAL, Chunks

_BLOCK = 1 << 20
_SETTLING = ".settling-"


@dataclass(frozen=True, slots=True)
class _Done:
    """A line of a journal."""

    task: str
    told: Any
    ends: list[int]
    sums: list[int]


class TakenUp:
    """The finished tasks of all folders below one. A folder that holds none, or is damaged, is deleted.

    Args:
        folder: which holds the folders of `Chunks`; it may be missing.
        pattern: of their names.
    """

    def __init__(self, folder: Path, pattern: str = "*") -> None:
        self._journals: dict[Path, list[_Done]] = {}
        for broken_off in folder.glob(f"{_SETTLING}*"):
            shutil.rmtree(broken_off)
        for left in sorted(folder.glob(pattern)):
            done = _journal(left / JOURNAL)
            if done and _intact(left, done[-1]):
                self._journals[left] = done
            else:
                shutil.rmtree(left)
        self.told: Mapping[str, Any] = {done.task: done.told for held in self._journals.values() for done in held}
        """What is told of each task."""

    def keep(self, tasks: Collection[str]) -> None:
        """Leave on the disk the records of these tasks alone."""
        for folder, done in self._journals.items():
            if all(item.task in tasks for item in done):
                _cut(folder, done[-1].ends)
            else:
                _take_out(folder, done, tasks)


def _journal(path: Path) -> list[_Done]:
    """The whole lines of a journal; its process may have been killed within the last."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return [_Done(*orjson.loads(line)) for line in lines]
    except (orjson.JSONDecodeError, TypeError):
        return []


def _intact(folder: Path, last: _Done) -> bool:
    """Whether the files hold what was written when the last task was finished."""
    return all(
        _sum(folder / f"{place:03d}", end) == wanted
        for place, (end, wanted) in enumerate(zip(last.ends, last.sums, strict=True))
    )


def _sum(path: Path, size: int) -> int | None:
    """The check sum of a file's first bytes; None where there are fewer."""
    found = 0
    if size:
        if not path.exists() or path.stat().st_size < size:
            return None
        with path.open("rb") as file:
            while size and (data := file.read(min(size, _BLOCK))):
                found, size = crc32(data, found), size - len(data)
    return found


def _cut(folder: Path, ends: list[int]) -> None:
    for place, end in enumerate(ends):
        path = folder / f"{place:03d}"
        if path.exists():
            with path.open("r+b") as file:
                file.truncate(end)


def _take_out(folder: Path, done: list[_Done], tasks: Collection[str]) -> None:
    """Write a folder anew with some of its tasks. Killed meanwhile, it leaves one whose tasks are done again."""
    made, begin = folder.with_name(f"{_SETTLING}{uuid4().hex}"), [0] * len(done[0].ends)
    chunks = Chunks(made, len(begin))
    for item in done:
        if item.task in tasks:
            for place, (start, end) in enumerate(zip(begin, item.ends, strict=True)):
                if end > start:
                    with (folder / f"{place:03d}").open("rb") as file:
                        file.seek(start)
                        chunks.append(place, file.read(end - start))
            chunks.done(item.task, item.told)
        begin = item.ends
    shutil.rmtree(folder)
    if any(item.task in tasks for item in done):
        made.replace(folder)
    else:
        shutil.rmtree(made)
