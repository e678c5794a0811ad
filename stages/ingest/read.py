"""Files of traces as JSON values, one at a time: JSON, JSON lines and Parquet, plain, gzip or zstd, from any address.

What a file is, is seen from its bytes, never from its name. What cannot be read is handed out as `Refused`, and what
stands beside it is read all the same.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import IO, Any, Literal

import fsspec
import ijson
import orjson

from schemas.addresses import without_secrets
from schemas.errors import DataError
from stages.ingest.limits import limits
from stages.ingest.memory import allowance, at_most
from stages.ingest.normal import Refused
from stages.ingest.packed import Unpacked, as_utf8

WHOLE = 64 << 20
"""A document of at most so many bytes is parsed at once; of a larger one, item after item."""
LINE = 256 << 20
"""Longest line of JSON lines, in bytes."""
BLOCK = 8 << 20
"""Bytes of lines of one piece, and the rest of its last line."""
_PARQUET, _ZIP = b"PAR1", b"PK"
_SEPARATOR = b"\x1e"
"""Stands before each value of a sequence of JSON texts (RFC 7464)."""
_DECODER, _ITEM = json.JSONDecoder(), re.compile(r"[^\s\x1e\ufeff]")
Shape = Literal["object", "array", "lines", "rows"]
"""Where a value stood: alone in its file, in an array, on a line of its own, or in a table."""


@dataclass(frozen=True, slots=True)
class Value:
    """One JSON value of a file."""

    value: Any
    shape: Shape
    where: str


def find_files(address: str) -> list[str]:
    """The files that an address names: itself, all below a folder, or what a pattern matches; sorted.

    Args:
        address: a path, a pattern with `*`, or any address that fsspec knows (`s3://…`, `gs://…`, …).

    Raises:
        DataError: when there is none.
    """
    try:
        system, path = fsspec.core.url_to_fs(address)
        if any(mark in path for mark in "*?["):
            found = [name for name in system.glob(path) if system.isfile(name)]
        elif system.isdir(path):
            found = [name for name in system.find(path) if not name.rsplit("/", 1)[-1].startswith(".")]
        else:
            found = [path] if system.exists(path) else []
    except Exception as error:  # noqa: BLE001 - what systems of files raise is of no one family
        raise DataError(without_secrets(f"{address}: {str(error) or type(error).__name__}")) from None
    if not found:
        raise DataError(f"{without_secrets(address)}: no file there. Name a file, a folder, or a pattern in quotes")
    return sorted(system.unstrip_protocol(name) if "://" in address else name for name in found)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file that can be read for itself: some of its lines, or all of it."""

    address: str
    lines: bytes | None
    """Whole lines of JSON lines; None for a file that is read as one."""
    before: int
    """How many lines come before them."""
    end: int
    """How many bytes of the file, as it lies there, are read once this is."""


def content_key(piece: Piece) -> str | None:
    """What tells one content of a piece from another; None where that cannot be known."""
    if piece.lines is not None:
        return hashlib.blake2b(piece.lines, digest_size=16).hexdigest()
    try:
        system, path = fsspec.core.url_to_fs(piece.address)
        if "://" in piece.address:
            return str(system.ukey(path))
        with system.open(path, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except Exception:  # noqa: BLE001 - reading it will say what is wrong
        return None


def pieces_of(address: str) -> Iterator[Piece | Refused]:
    """A file in pieces, in order. The values of them all are those of the file."""
    before, shown = 0, without_secrets(address)
    try:
        with fsspec.open(address, "rb") as raw:
            start = raw.read(4)
            raw.seek(0)
            plain = Unpacked(raw, start)
            bare = start == _PARQUET or start[:2] == _ZIP
            layout, stream = ("rows", plain) if bare else _layout(as_utf8(plain))
            if layout != "lines":
                yield Piece(address, None, 0, size_of(address))
                return
            while lines := stream.read(BLOCK):
                lines += stream.read(BLOCK - len(lines)) if len(lines) < BLOCK else b""
                lines += b"" if lines.endswith(b"\n") else stream.readline(LINE)
                yield Piece(address, lines, before, raw.tell())
                before += lines.count(b"\n")
            if plain.failure:
                yield Refused("not_readable", plain.failure, shown)
    except Exception as error:  # noqa: BLE001 - what is no error of a system of files is raised again
        yield _unreadable(address, error)


def lines_of(piece: Piece) -> Iterator[Value | Refused]:
    """The values of a piece of lines."""
    return _lines(io.BytesIO(piece.lines or b""), without_secrets(piece.address), piece.before)


def size_of(address: str) -> int:
    """Bytes of a file; 0 where its system does not tell."""
    try:
        system, path = fsspec.core.url_to_fs(address)
        return int(system.size(path) or 0)
    except Exception:  # noqa: BLE001 - reading it will say what is wrong
        return 0


def read_values(address: str, split: tuple[str, ...] = ()) -> Iterator[Value | Refused]:
    """The values of one file, in order.

    Args:
        address: of the file.
        split: keys below which a large object holds the list that it is made of: the object is handed out once for
            each item, with the item alone in that list, and without its other keys.
    """
    shown = without_secrets(address)
    try:
        with fsspec.open(address, "rb") as raw:
            start = raw.read(4)
            raw.seek(0)
            if start == _PARQUET:
                yield from _rows(raw, shown)
            elif start[:2] == _ZIP:
                whole = zipfile.is_zipfile(raw)
                detail = (
                    "only .eval logs of inspect_ai are read: unpack it" if whole else "it ends before its directory"
                )
                yield Refused("zip", f"a zip archive: {detail}", shown)
            else:
                plain = Unpacked(raw, start)
                yield from _values(as_utf8(plain), shown, split)
                if plain.failure:
                    yield Refused("not_readable", plain.failure, shown)
    except Exception as error:  # noqa: BLE001 - what is no error of a system of files is raised again
        yield _unreadable(address, error)


def _unreadable(address: str, error: Exception) -> Refused:
    """That a file cannot be read. What is no error of a system of files is raised again."""
    if not isinstance(error, OSError) and "://" not in address:
        raise error  # systems of files that are far away raise errors of their own
    return Refused("not_readable", without_secrets(str(error) or type(error).__name__), without_secrets(address))


def _rows(raw: IO[bytes], address: str) -> Iterator[Value | Refused]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        number, total, size = 0, 0, raw.seek(0, io.SEEK_END)
        file, allowed = pq.ParquetFile(raw), limits().allowed(size)
        groups = range(file.metadata.num_row_groups)
        said = sum(file.metadata.row_group(place).total_byte_size for place in groups)
        for size_told, rows in _batches(file, size) if said <= allowed else ():
            total += size_told
            if total > max(allowed, limits().allowed(said)):
                break
            for row in rows:
                number += 1
                yield Value(_as_json(row), "rows", f"{address}, row {number}")
        if said > allowed or total > max(allowed, limits().allowed(said)):
            yield Refused("too_large", limits().refusal(allowed), address)
    except MemoryError:
        detail = f"256 of its rows, behind row {number}, take more than {allowance(size):,} bytes of memory"
        yield Refused("too_large", detail, address)
    except (pa.ArrowException, UnicodeDecodeError) as error:  # names of columns may be no text
        yield Refused("not_readable", str(error).splitlines()[0], address)


def _batches(file: Any, size: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The rows of a Parquet file, some at a time, and the bytes that those take as a table.

    Raises:
        MemoryError: where they take more than a file of this size may.
    """
    batches = file.iter_batches(batch_size=256, use_threads=False)
    while True:
        with at_most(allowance(size)):
            batch = next(batches, None)
            if batch is None:
                return
            found = batch.nbytes, batch.to_pylist()
        yield found


def _as_json(value: Any) -> Any:
    """A table's value as JSON has it: times in ISO-8601, bytes in hex, decimals as numbers."""
    if isinstance(value, dict):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return float(value) if isinstance(value, Decimal) else value


def _values(stream: io.BufferedReader, address: str, split: tuple[str, ...]) -> Iterator[Value | Refused]:
    layout, whole = _layout(stream)
    if layout == "empty":
        yield Refused("empty", "the file is empty", address)
    elif layout == "lines":
        yield from _lines(whole, address)
    elif layout == "array":
        yield from _array(io.BufferedReader(whole), address)
    else:
        yield from _object(whole, address, split)


def _layout(stream: io.BufferedReader) -> tuple[Literal["empty", "lines", "array", "object"], _Chained]:
    """How a file lays its values out, and the file from its first value on."""
    head = _skip_space(stream)
    if not head:
        return "empty", _Chained(b"", stream)
    if head[:1] not in (b"[", b"{"):
        return "lines", _Chained(b"", stream)
    first = stream.readline(WHOLE if head[:1] == b"[" else LINE)
    more = first.endswith(b"\n") and _skip_space(stream)
    if more and _is_json(first):
        return "lines", _Chained(first, stream)
    return "array" if head[:1] == b"[" else "object", _Chained(first, stream)


def _skip_space(stream: io.BufferedReader) -> bytes:
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


class _Chained(io.RawIOBase):
    """Bytes that were read already, then the rest of the stream."""

    def __init__(self, first: bytes, rest: io.BufferedReader) -> None:
        self._first, self._rest = io.BytesIO(first), rest

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            return self._first.read() + self._rest.read()
        return self._first.read(size) or self._rest.read(size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readline(self, size: int | None = -1) -> bytes:
        return self._first.readline() or self._rest.readline(size if size is not None else -1)


def _is_json(text: bytes) -> bool:
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


def _lines(stream: Any, address: str, before: int = 0) -> Iterator[Value | Refused]:
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
    items = _items(_Chained(start, stream), "item", address)
    yield from (item if isinstance(item, Refused) else Value(item[0], "array", item[1]) for item in items)


def _object(stream: _Chained, address: str, split: tuple[str, ...]) -> Iterator[Value | Refused]:
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
    for item in _items(_Chained(start + rest, io.BufferedReader(stream)), f"{key}.item", address):
        yield item if isinstance(item, Refused) else Value({key: [item[0]]}, "object", item[1])


def _goes_on(start: bytes) -> bool:
    """Whether a document ends within these bytes, and something else follows."""
    try:
        _, end = _DECODER.raw_decode(start.decode(errors="replace"))
    except (ValueError, RecursionError):
        return False
    return end < len(start)


def _documents(start: bytes, stream: _Chained, rest: bytes, address: str) -> Iterator[Value | Refused]:
    """Documents that follow each other, each over any number of lines; where one breaks off, those before are kept."""
    if rest:
        found = _items(_Chained(start + rest, io.BufferedReader(stream)), "", address)
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


def _items(stream: _Chained, prefix: str, address: str) -> Iterator[tuple[Any, str] | Refused]:
    """The items of a list in a document, one at a time; where the document breaks off, what came before is kept."""
    place = 0
    try:
        for item in ijson.items(stream, prefix, use_float=True, multiple_values=not prefix):
            place += 1
            yield item, f"{address}, item {place}"
    except (ijson.JSONError, ijson.IncompleteJSONError, UnicodeDecodeError) as error:
        yield Refused("not_json", f"after item {place}: {str(error).splitlines()[0]}", address)
