"""Files of comma-separated values, with `;` and tabs too: each row as an object by the names of the first line.

What a cell holds is text, nothing where it is empty; JSON in it stays text, which formats unpack.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from typing import IO

import fsspec

from schemas.addresses import without_secrets
from stages.ingest.json_values import WHOLE
from stages.ingest.normal import Refused
from stages.ingest.packed import PARQUET, ZIP, Unpacked, as_utf8
from stages.ingest.shape import Value

_NAME = re.compile(r"[A-Za-z_][\w .:/\[\]()-]{0,99}")
_SEPARATORS = (",", ";", "\t")
_HEADER = 1 << 16


def csv_values(address: str) -> Iterator[Value | Refused] | None:
    """The rows of a file whose first line is names; None for any other file.

    Raises:
        OSError: when it cannot be opened.
    """
    with fsspec.open(address, "rb") as raw:
        stream = _opened(raw)
        separator = _separator(stream.peek(_HEADER) if stream else b"")
    return None if separator is None else _rows(address, separator)


def _opened(raw: IO[bytes]) -> io.BufferedReader | None:
    start = raw.read(4)
    raw.seek(0)
    return None if start[:2] == ZIP or start == PARQUET else as_utf8(Unpacked(raw, start))


def _separator(head: bytes) -> str | None:
    """What stands between the names of a header; None where the first line is none."""
    line = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    try:
        text = line.decode().strip("\r")
    except UnicodeDecodeError:
        return None
    for separator in _SEPARATORS:
        names = [name.strip().strip('"') for name in text.split(separator)]
        if not names[0] or names[0] in names[1:]:  # the index of a data frame
            names = names[1:]
        if len(names) > 1 and len(set(names)) == len(names) and all(map(_NAME.fullmatch, names)):
            return separator
    return None


def _rows(address: str, separator: str) -> Iterator[Value | Refused]:
    shown = without_secrets(address)
    csv.field_size_limit(WHOLE)  # of characters: a quote that is never closed may not take the whole file
    with fsspec.open(address, "rb") as raw:
        plain = Unpacked(raw, raw.read(4))
        raw.seek(0)
        text = io.TextIOWrapper(as_utf8(plain), encoding="utf-8-sig", errors="replace", newline="")
        rows = csv.reader(_without_nulls(text), delimiter=separator)
        names: list[str] = []
        try:
            for cells in rows:
                where = f"{shown}, line {rows.line_num}"
                if not any(map(str.strip, cells)):
                    continue
                if not names:
                    names = [name.strip() for name in cells]
                elif len(cells) != len(names):
                    detail = f"{len(cells)} cells, expected {len(names)}, one for each name of the first line"
                    yield Refused("broken", detail, where)
                else:
                    yield Value(
                        {name: cell or None for name, cell in zip(names, cells, strict=True) if name}, "rows", where
                    )
        except csv.Error as error:
            yield Refused("not_readable", f"after line {rows.line_num}: {error}", shown)
        if plain.failure:
            yield Refused("not_readable", plain.failure, shown)


def _without_nulls(lines: io.TextIOWrapper) -> Iterator[str]:
    return (line.replace("\0", "\ufffd") for line in lines)
