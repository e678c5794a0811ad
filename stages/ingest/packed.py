"""Bytes out of gzip or zstd, or as they are. A file that is cut short gives what comes before, and then says so.

Text in UTF-16 or UTF-32 becomes UTF-8.
"""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from typing import IO, Any, Protocol

import zstandard

from stages.ingest.limits import limits

PARQUET, ZIP = b"PAR1", b"PK"
"""What files begin with that are unpacked by their own readers."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_STEP = 1 << 18
_ZSTD_STEP = 1 << 13
"""Packed bytes that are unpacked at once: zstd makes at most 32,768 of each, all of them in memory."""


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Unpacked(io.RawIOBase):
    """The bytes of a file.

    Args:
        raw: the file, at its start.
        start: its first four bytes.
    """

    def __init__(self, raw: IO[bytes], start: bytes) -> None:
        self.failure: str | None = None
        """Why the bytes end before the file does."""
        self._raw, self._count = raw, 0
        self._source: _Source = raw
        self._packed = True
        if start[:2] == _GZIP:
            self._source = _Gzip(raw)
        elif start == _ZSTD:
            self._source = _Frames(raw)
        else:
            self._packed = False

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; 0 at the end, and where nothing further can be unpacked."""
        if self.failure:
            return 0
        try:
            data = self._source.read(len(buffer))
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            self.failure = str(error)
            return 0
        self._count += len(data)
        allowed = limits().allowed(self._raw.tell()) if self._packed else self._count
        if self._count > allowed:
            self.failure = limits().refusal(allowed)
            return 0
        buffer[: len(data)] = data
        return len(data)


_CODES = {
    codecs.BOM_UTF32_LE: "utf-32",  # whose mark begins with that of UTF-16
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def as_utf8(plain: Unpacked) -> Any:
    """The bytes as a buffered stream, in UTF-8 where the mark at their start names another code."""
    stream: Any = io.BufferedReader(plain)
    start = stream.peek(4)[:4]
    code = next((code for mark, code in _CODES.items() if start.startswith(mark)), None)
    return stream if code is None else io.BufferedReader(_Recoded(stream, code))


class _Recoded(io.RawIOBase):
    """Text of another code as UTF-8; what is none in its code becomes U+FFFD."""

    def __init__(self, stream: IO[bytes], code: str) -> None:
        self._stream, self._held = stream, b""
        self._decoder = codecs.getincrementaldecoder(code)(errors="replace")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; 0 at the end."""
        while not self._held and (data := self._stream.read(_STEP)):
            self._held = self._decoder.decode(data).encode(errors="replace")
        size = min(len(buffer), len(self._held))
        buffer[:size], self._held = self._held[:size], self._held[size:]
        return size


class _Gzip:
    """What gzip packed. The own `read` of that goes on for all that is asked, and loses it where the file is cut."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._file = gzip.GzipFile(fileobj=raw)

    def read(self, size: int, /) -> bytes:
        return self._file.read1(size)


class _Frames:
    """Frames of zstd, one behind the other. The library's own reader ends in silence where a frame is cut."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self._held, self._left = raw, b"", b""
        self._frame: Any = None

    def read(self, size: int, /) -> bytes:
        while not self._held:
            packed = self._left or self._raw.read(_ZSTD_STEP)
            self._left = b""
            if not packed and self._frame is None:
                return b""
            if not packed:
                raise EOFError("the file ends within a zstd frame")
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._held = self._frame.decompress(packed)
            if self._frame.eof:
                self._left, self._frame = self._frame.unused_data, None
        data, self._held = self._held[:size], self._held[size:]
        return data
