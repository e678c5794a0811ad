"""JSON values of a file, one at a time: of one document, an array, lines, or documents that follow each other."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import ijson

from stages.ingest.json_stream import Chained, is_json, parse, skip_space
from stages.ingest.normal import Refused
from stages.ingest.shape import Value

WHOLE = 64 << 20
"""A document of at most so many bytes is parsed at once; of a larger one, item after item."""
LINE = 256 << 20
"""Longest line of JSON lines, in bytes."""
_SEPARATOR = b"\x1e"
"""Stands before each value of a sequence of JSON texts (RFC 7464)."""
_DECODER, _ITEM = json.JSONDecoder(), re.compile(r"[^\s\x1e\ufeff]")


def json_values(stream: io.BufferedReader, address: str, split: tuple[str, ...]) -> Iterator[Value | Refused]:
    """The values of a file of JSON, in order. See `read.read_values`."""
    layout, whole = layout_of(stream)
    if layout == "empty":
        yield Refused("empty", "the file is empty", address)
    elif layout == "lines":
        yield from json_lines(whole, address)
    elif layout == "array":
        yield from _array(io.BufferedReader(whole), address)
    else:
        yield from _object(whole, address, split)


def layout_of(stream: io.BufferedReader) -> tuple[Literal["empty", "lines", "array", "object"], Chained]:
    """How a file lays its values out, and the file from its first value on."""
    head = skip_space(stream)
    if not head:
        return "empty", Chained(b"", stream)
    if head[:1] not in (b"[", b"{"):
        return "lines", Chained(b"", stream)
    first = stream.readline(WHOLE if head[:1] == b"[" else LINE)
    more = skip_space(stream) if first.endswith(b"\n") else b""
    if more and is_json(first):
        return "lines", Chained(first, stream)
    following = [stream.readline(LINE), stream.readline(LINE)] if more[:1] == b"{" else []
    read = Chained(first + b"".join(following), stream)
    if following and _is_broken(first, *following):
        return "lines", read
    return "array" if head[:1] == b"[" else "object", read


def _is_broken(first: bytes, second: bytes, third: bytes) -> bool:
    """Whether a line that is no JSON is one of lines: no document has two objects without a comma between them."""
    alone = not third and first.rstrip()[-1:] not in (b"[", b"{", b",", b":")
    return _is_object(second) and (alone or _is_object(third))


def _is_object(line: bytes) -> bool:
    return line.lstrip()[:1] == b"{" and is_json(line)


def json_lines(stream: Any, address: str, before: int = 0) -> Iterator[Value | Refused]:
    """The values of lines. `before`: how many lines of their file come before them."""
    number = before
    while line := stream.readline(LINE):
        number += 1
        where = f"{address}, line {number}"
        if not line.strip():
            continue
        try:
            yield Value(parse(line.lstrip(_SEPARATOR)), "lines", where)
        except ValueError as error:
            yield Refused("not_json", str(error), where)


def _array(stream: io.BufferedReader, address: str) -> Iterator[Value | Refused]:
    start = stream.read(WHOLE)
    if not stream.peek(1):
        try:
            whole = parse(start)
        except ValueError:
            pass
        else:
            yield from (Value(item, "array", f"{address}, item {place + 1}") for place, item in enumerate(whole))
            return
    items = _items(Chained(start, stream), "item", address)
    yield from (item if isinstance(item, Refused) else Value(item[0], "array", item[1]) for item in items)


def _object(stream: Chained, address: str, split: tuple[str, ...]) -> Iterator[Value | Refused]:
    start = stream.read(WHOLE)
    while (more := stream.read(WHOLE - len(start))) if len(start) < WHOLE else b"":
        start += more
    rest = stream.read(1)
    refusal = ""
    if not rest:
        try:
            value = parse(start)
        except ValueError as error:
            refusal = str(error)
        else:
            yield Value(value, "object", address)
            return
    if _goes_on(start):
        yield from _documents(start, stream, rest, address)
        return
    if not split:
        reason = refusal or f"one object of more than {WHOLE >> 20} MiB, of a format that is read whole"
        yield Refused("not_json" if refusal else "too_large", reason, address)
        return
    key = next((name for name in split if f'"{name}"'.encode() in start), split[0])
    for item in _items(Chained(start + rest, io.BufferedReader(stream)), f"{key}.item", address):
        yield item if isinstance(item, Refused) else Value({key: [item[0]]}, "object", item[1])


def _goes_on(start: bytes) -> bool:
    """Whether a document ends within these bytes, and something else follows."""
    try:
        _, end = _DECODER.raw_decode(start.decode(errors="replace"))
    except (ValueError, RecursionError):
        return False
    return end < len(start)


def _documents(start: bytes, stream: Chained, rest: bytes, address: str) -> Iterator[Value | Refused]:
    """Documents that follow each other, each over any number of lines; where one breaks off, those before are kept."""
    if rest:
        found = _items(Chained(start + rest, io.BufferedReader(stream)), "", address)
        yield from (item if isinstance(item, Refused) else Value(item[0], "lines", item[1]) for item in found)
        return
    text, place, number = start.decode(errors="surrogateescape"), 0, 0
    while place < len(text):
        number += 1
        try:
            value, place = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            yield Refused("not_json", f"after item {number - 1}: {error}", address)
            return
        yield Value(value, "lines", f"{address}, item {number}")
        following = _ITEM.search(text, place)
        place = following.start() if following else len(text)


def _items(stream: Chained, prefix: str, address: str) -> Iterator[tuple[Any, str] | Refused]:
    """The items of a list in a document, one at a time; where the document breaks off, what came before is kept."""
    place = 0
    try:
        for item in ijson.items(stream, prefix, use_float=True, multiple_values=not prefix):
            place += 1
            yield item, f"{address}, item {place}"
    except (ijson.JSONError, ijson.IncompleteJSONError, UnicodeDecodeError) as error:
        yield Refused("not_json", f"after item {place}: {str(error).splitlines()[0]}", address)
