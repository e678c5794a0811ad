"""Spoils files of JSON, lines of JSON, TOML and bytes, by a seed: what is broken, what is odd, and what is hostile."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

import zstandard

from schemas.canonical import digest

RAW = (
    b"1" * 5000,
    b"-1e999",
    b"NaN",
    b"[" * 3000 + b"]" * 3000,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b'"\\ud800"',
    b'"\\u0000\\u001b[31m"',
    b'"\xff\xfe"',
    b'{"trace_id":"a","trace_id":"b"}',
    b"18446744073709551616",
    b"-0.0",
    b"",
)
"""What no encoder of JSON writes."""
ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    7,
    2**31,
    2**63,
    -(2**63),
    1e308,
    -1.5,
    "",
    "text",
    "0",
    "\u202e\u0007",
    "é\U0001f600",
    "../../../etc/passwd",
    "/dev/zero",
    "a/b\\c\nd",
    "2026-01-02T03:04:05Z",
    "9999-12-31T23:59:59+99:99",
    '{"a": [1, {"b": "c"}]}',
    '["x"]',
    [],
    {},
    [None],
    [[]],
    {"": ""},
    {"a": {"b": {"c": []}}},
    ["x", 3, None, {}],
)
MAGIC = (
    b"PAR1",
    b"PK\x03\x04",
    b"\x1f\x8b\x08",
    b"\x28\xb5\x2f\xfd",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\x1e",
    b"\0",
    b"\n",
)
_MARK = "\u0001raw"
Path = tuple[Any, ...]


def mutated(data: bytes, others: Sequence[bytes], draw: Random) -> bytes:
    """A file spoilt in one to four places.

    Args:
        data: the file.
        others: files whose values may be put into it.
        draw: decides everything.
    """
    values, lines = _values(data)
    if values is not None and draw.random() < 0.75:
        data = spoilt_json(values, others, draw, lines=lines)
    if values is None or draw.random() < 0.3:
        for _ in range(draw.randint(1, 3)):
            data = draw.choice(_BYTES)(data, draw)
    return _packed(data, draw) if draw.random() < 0.06 else data


def spoilt_json(values: list[Any], others: Sequence[bytes], draw: Random, *, lines: bool) -> bytes:
    """Values of JSON with parts of them changed, as one document or on lines."""
    values = deepcopy(values)
    marks: list[bytes] = []
    for _ in range(draw.randint(1, 4)):
        _spoil(values, others, draw, marks)
    how: dict[str, Any] = {"ensure_ascii": draw.random() < 0.5, "indent": None if lines or draw.random() < 0.8 else 1}
    parts = [json.dumps(value, **how).encode(errors="surrogatepass") for value in values]
    data = b"\n".join(parts) + b"\n" * draw.randint(0, 1)
    for place, raw in enumerate(marks):
        data = data.replace(json.dumps(f"{_MARK}{place};").encode(), raw)
    return data


def resealed(data: bytes, draw: Random) -> bytes:
    """A record of ours whose digests follow from its content again, as who changes it on purpose would have it."""
    values, lines = _values(data)
    if values is None or draw.random() < 0.2:
        return data
    for value in values:
        if isinstance(value, dict):
            _seal(value)
    return b"\n".join(json.dumps(value).encode() for value in values) + (b"\n" if lines or draw.random() < 0.5 else b"")


def _seal(value: dict[str, Any]) -> None:
    try:
        if "payload" in value and "key" in value:
            value["key"] = digest(value["payload"])
        for name in ("manifest_digest", "digest"):
            if name in value and (name == "manifest_digest" or "manifest_digest" not in value):
                value[name] = digest({key: item for key, item in value.items() if key != name})
    except (TypeError, ValueError, RecursionError):
        return


def _values(data: bytes) -> tuple[list[Any] | None, bool]:
    """The values of a file of JSON, and whether they stand on lines."""
    try:
        return [json.loads(data)], False
    except (ValueError, RecursionError):
        pass
    try:
        return [json.loads(line) for line in data.splitlines() if line.strip()] or None, True
    except (ValueError, RecursionError):
        return None, False


def places(value: Any, path: Path = (), depth: int = 0) -> list[Path]:
    """The paths of all parts of a value."""
    if depth > 60:
        return [path]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key), depth + 1))]


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _spoil(values: list[Any], others: Sequence[bytes], draw: Random, marks: list[bytes]) -> None:
    *way, last = draw.choice([path for path in places(values) if path] or [(0,)])
    holder = _at(values, tuple(way))
    kind = draw.randrange(9)
    if kind <= 2:
        holder[last] = deepcopy(draw.choice(ODD))
    elif kind == 3:
        holder[last] = f"{_MARK}{len(marks)};"
        marks.append(draw.choice(RAW))
    elif kind == 4 and way:
        del holder[last]
    elif kind == 5:
        holder[last] = deepcopy(_at(values, draw.choice(places(values))))
    elif kind == 6 and isinstance(holder, dict):
        holder[draw.choice(["", "id", "type", "value", "\x00", "../x", last.upper()])] = holder[last]
    elif kind == 7 and others:
        theirs, _ = _values(draw.choice(others))
        holder[last] = deepcopy(_at(theirs, draw.choice(places(theirs)))) if theirs else None
    elif isinstance(holder[last], str):
        text = holder[last]
        cut = draw.randint(0, len(text))
        holder[last] = (
            text[:cut] + draw.choice(["\x00", "\u2028", "{", '"', "\ud83d", "\x1b[2J", "x" * 999]) + text[cut:]
        )
    else:
        holder[last] = [holder[last]] * draw.randint(0, 3)


def _flip(data: bytes, draw: Random) -> bytes:
    found = bytearray(data)
    for _ in range(draw.randint(1, 8) if found else 0):
        found[draw.randrange(len(found))] ^= 1 << draw.randrange(8)
    return bytes(found)


def _cut(data: bytes, draw: Random) -> bytes:
    return data[: draw.randint(0, len(data))]


def _take_out(data: bytes, draw: Random) -> bytes:
    start = draw.randint(0, len(data))
    return data[:start] + data[start + draw.randint(1, 200) :]


def _put_in(data: bytes, draw: Random) -> bytes:
    start = draw.randint(0, len(data)) if draw.random() < 0.7 else 0
    return data[:start] + draw.choice([*MAGIC, *RAW, draw.randbytes(8)]) + data[start:]


def _again(data: bytes, draw: Random) -> bytes:
    start = draw.randint(0, len(data))
    part = data[start : start + draw.randint(1, 400)]
    return data[:start] + part * draw.randint(2, 5) + data[start:]


_BYTES: tuple[Callable[[bytes, Random], bytes], ...] = (_flip, _flip, _cut, _take_out, _put_in, _again)


def _packed(data: bytes, draw: Random) -> bytes:
    kind = draw.randrange(5)
    if kind == 0:
        data = gzip.compress(data)
    elif kind == 1:
        data = zstandard.ZstdCompressor().compress(data)
    elif kind == 2:
        return data.decode(errors="replace").encode("utf-16")
    else:
        held = io.BytesIO()
        names = ["header.json", "samples/a_epoch_1.json", "../x", "journal/start.json", "samples/\x1b.json"]
        how = draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
        with zipfile.ZipFile(held, "w", how) as archive:
            for name in draw.sample(names, draw.randint(1, len(names))):
                archive.writestr(name, data[: 1 << 16])
        data = held.getvalue()
    return _flip(data, draw) if draw.random() < 0.6 else data
