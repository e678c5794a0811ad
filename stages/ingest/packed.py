"""Bytes out of gzip or zstd, or as they are. A file that is cut short gives what comes before, and then says so."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import IO, Any, Protocol

import zstandard

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_STEP = 1 << 18


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
        self._source: _Source = raw
        if start[:2] == _GZIP:
            self._source = gzip.GzipFile(fileobj=raw)
        elif start == _ZSTD:
            self._source = _Frames(raw)

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
        buffer[: len(data)] = data
        return len(data)


class _Frames:
    """Frames of zstd, one behind the other. The library's own reader ends in silence where a frame is cut."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw, self._held, self._left = raw, b"", b""
        self._frame: Any = None

    def read(self, size: int, /) -> bytes:
        while not self._held:
            packed = self._left or self._raw.read(_STEP)
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
