"""Items of any number of files, brought together by trace in bounded memory.

Items are appended to a fixed number of files by a hash of their trace, so that only one of them is held at a time when
traces are put together. What is kept of them does not depend on the order or the files in which they came.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from stages.ingest.assemble import Trace
from stages.ingest.normal import Call, Item, Refused, Score, Span

PARTS = 256
_HELD = 1 << 23
"""Bytes that wait in memory before they are written."""
_KINDS = {"span": Span, "score": Score, "refused": Refused}
_LISTS = ("messages", "tool_calls", "prompt_ids", "completion_ids", "logprobs")


class Spool:
    """Items on their way, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._waiting: list[list[bytes]] = [[] for _ in range(PARTS)]
        self._size = 0
        self.spans = 0

    def add(self, item: Item, format_name: str) -> Refused | None:
        """Take in an item of a known trace; one that cannot be stored is refused in its place."""
        assert item.trace is not None
        try:
            line = _line(item, format_name)
        except (TypeError, ValueError) as error:
            refused = Refused("not_storable", f"a value has no JSON form: {error}", item.where, _trace_id(item.trace))
            self._keep(refused.trace or "", _line(refused, format_name))
            return refused
        self.spans += isinstance(item, Span)
        self._keep(item.trace, line)
        return None

    def _keep(self, trace: str, line: bytes) -> None:
        place = hashlib.blake2b(trace.encode(), digest_size=1).digest()[0]
        self._waiting[place].append(line)
        self._size += len(line)
        if self._size > _HELD:
            self._write()

    def _write(self) -> None:
        for place, lines in enumerate(self._waiting):
            if lines:
                with (self._folder / f"{place:02x}").open("ab") as file:
                    file.writelines(lines)
                lines.clear()
        self._size = 0

    def traces(self) -> Iterator[Trace]:
        """Every trace with all that belongs to it, part by part and by id within."""
        self._write()
        for place in range(PARTS):
            path = self._folder / f"{place:02x}"
            if path.exists():
                yield from _by_trace(path)


def _trace_id(trace: str) -> str:
    return trace.encode(errors="replace").decode()


def _line(item: Item, format_name: str) -> bytes:
    kind = next(name for name, made in _KINDS.items() if isinstance(item, made))
    kept = replace(item, where="") if isinstance(item, Score) else item
    return orjson.dumps([format_name, kind, kept], option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS)


def _by_trace(path: Path) -> Iterator[Trace]:
    found: dict[str, list[tuple[str, Item]]] = {}
    with path.open("rb") as file:
        for line in file:
            format_name, kind, held = orjson.loads(line)
            found.setdefault(held["trace"], []).append((format_name, _item(kind, held)))
    for name in sorted(found):
        yield _trace(name, found.pop(name))


def _item(kind: str, held: dict[str, Any]) -> Item:
    call: dict[str, Any] | None = held.get("call")
    if call is not None:
        call |= {name: tuple(call[name]) for name in _LISTS if call[name] is not None}
        held["call"] = Call(**call)
    made: Item = _KINDS[kind](**held)
    return made


def _trace(name: str, records: list[tuple[str, Item]]) -> Trace:
    """A trace of its records. Its format is that of its spans; of several, the first by name."""
    spans = [(format_name, item) for format_name, item in records if isinstance(item, Span)]
    return Trace(
        name,
        min(format_name for format_name, _ in spans or records),
        [span for _, span in spans],
        [item for _, item in records if isinstance(item, Score)],
        [item for _, item in records if isinstance(item, Refused)],
    )
