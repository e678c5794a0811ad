"""Streams of bytes in which JSON is looked for, and one value of them."""

from __future__ import annotations

import io
import json
from typing import Any

import orjson


def skip_space(stream: io.BufferedReader) -> bytes:
    """What stands next in a stream, behind a byte order mark and white space; empty at the end."""
    while head := stream.peek(64):
        if head.startswith(b"\xef\xbb\xbf"):
            stream.read(3)
            continue
        bare = head.lstrip()
        if bare:
            stream.read(len(head) - len(bare))
            return bare
        stream.read(len(head))
    return b""


class Chained(io.RawIOBase):
    """Bytes that were read already, then the rest of the stream."""

    def __init__(self, first: bytes, rest: io.BufferedReader) -> None:
        self._first, self._rest = io.BytesIO(first), rest

    def read(self, size: int = -1) -> bytes:
        """At most so many bytes; fewer where what was read already ends. Negative: all."""
        if size < 0:
            return self._first.read() + self._rest.read()
        return self._first.read(size) or self._rest.read(size)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; 0 at the end."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readline(self, size: int | None = -1) -> bytes:
        """The next line. What was read already ends with one."""
        return self._first.readline() or self._rest.readline(size if size is not None else -1)


def is_json(text: bytes) -> bool:
    """Whether these bytes are one JSON value."""
    try:
        parse(text)
    except ValueError:
        return False
    return True


def parse(text: bytes) -> Any:
    """A JSON value; also one with NaN or with half of a surrogate pair, which strict parsers refuse.

    Raises:
        ValueError: for anything else.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("nested too deeply") from None
