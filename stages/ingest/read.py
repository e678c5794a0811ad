"""Files of traces as JSON values, one at a time: JSON, JSON lines and Parquet, plain, gzip or zstd, from any address.

What a file is, is seen from its bytes, never from its name. What cannot be read is handed out as `Refused`, and what
stands beside it is read all the same.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator

import fsspec

from schemas.addresses import without_secrets
from stages.ingest.files import unreadable
from stages.ingest.json_values import json_values
from stages.ingest.normal import Refused
from stages.ingest.packed import PARQUET, ZIP, Unpacked, as_utf8
from stages.ingest.parquet_rows import parquet_rows
from stages.ingest.shape import Value

_LOOKED_AT = 64
"""Bytes by which a text is told from something else."""
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\v\f\r\x1b\x1e")


def is_binary(address: str) -> bool:
    """Whether a file begins with bytes that no text begins with, nor a table or an archive."""
    with fsspec.open(address, "rb") as raw:
        start = raw.read(4)
        raw.seek(0)
        if start == PARQUET or start[:2] == ZIP:
            return False
        return not _CONTROL.isdisjoint(as_utf8(Unpacked(raw, start)).read(_LOOKED_AT))


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
            if start == PARQUET:
                yield from parquet_rows(raw, shown)
            elif start[:2] == ZIP:
                whole = zipfile.is_zipfile(raw)
                detail = (
                    "only .eval logs of inspect_ai are read: unpack it" if whole else "it ends before its directory"
                )
                yield Refused("zip", f"a zip archive: {detail}", shown)
            else:
                plain = Unpacked(raw, start)
                yield from json_values(as_utf8(plain), shown, split)
                if plain.failure:
                    yield Refused("not_readable", plain.failure, shown)
    except Exception as error:  # noqa: BLE001 - what is no error of a system of files is raised again
        yield unreadable(address, error)
