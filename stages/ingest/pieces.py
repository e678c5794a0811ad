"""Files in pieces that can be read each for itself, by any process: lines of JSON lines, any other file as a whole."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass

import fsspec

from schemas.addresses import without_secrets
from stages.ingest.files import size_of, unreadable
from stages.ingest.json_values import LINE, json_lines, layout_of
from stages.ingest.normal import Refused
from stages.ingest.packed import PARQUET, ZIP, Unpacked, as_utf8
from stages.ingest.shape import Value

BLOCK = 8 << 20
"""Bytes of lines of one piece, and the rest of its last line."""


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
            bare = start == PARQUET or start[:2] == ZIP
            layout, stream = ("rows", plain) if bare else layout_of(as_utf8(plain))
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
        yield unreadable(address, error)


def lines_of(piece: Piece) -> Iterator[Value | Refused]:
    """The values of a piece of lines."""
    return json_lines(io.BytesIO(piece.lines or b""), without_secrets(piece.address), piece.before)
