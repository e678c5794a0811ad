"""Members of a zip archive, one at a time and never onto the disk: stored, deflated, or packed by zstd.

What an archive says of itself is not believed: as much is unpacked as limits allow, whatever the sizes that it names.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

import zstandard

from stages.ingest.limits import limits

_MEMBER = 256 << 20
"""Most bytes of one member."""
_ZSTD = 93
_LOCAL = struct.Struct("<4s5H3I2H")
_KINDS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, _ZSTD}
_BROKEN = (
    zipfile.BadZipFile,
    OSError,
    EOFError,
    zlib.error,
    zstandard.ZstdError,
    struct.error,
    NotImplementedError,
    ValueError,  # a name that is no text, a place before the file
    OverflowError,
)


def members_of(raw: IO[bytes]) -> list[str] | None:
    """The names of an archive's members; None for what is no archive, or one whose directory cannot be read."""
    if raw.read(2) != b"PK":
        return None
    try:
        with zipfile.ZipFile(raw) as archive:
            return archive.namelist()
    except _BROKEN:
        return None


def read_members(raw: IO[bytes], below: str) -> Iterator[tuple[str, bytes | str]]:
    """Members below a folder, by name: their bytes, or why they cannot be had.

    Of several of one name the last counts, as archives are written on at their end.
    """
    size, total = raw.seek(0, io.SEEK_END), 0
    with zipfile.ZipFile(raw) as archive:
        last = {info.filename: info for info in archive.infolist() if info.filename.startswith(below)}
        for name in sorted(last):
            if last[name].is_dir():
                continue
            allowed = min(_MEMBER, limits().allowed(size) - total)
            try:
                data = _read(archive, raw, last[name], allowed)
            except _BROKEN as error:
                yield name, str(error)
                continue
            if data is None:
                yield name, limits().refusal(allowed)
                continue
            total += len(data)
            yield name, data


def _read(archive: zipfile.ZipFile, raw: IO[bytes], info: zipfile.ZipInfo, allowed: int) -> bytes | None:
    """A member; None where it is longer than allowed."""
    if info.flag_bits & 1:
        raise NotImplementedError("it is encrypted")
    if info.compress_type not in _KINDS:
        raise NotImplementedError(f"packed in a way that is not known ({info.compress_type})")
    if info.compress_type == _ZSTD:
        part = io.BufferedReader(_Part(raw, info))
        with zstandard.ZstdDecompressor().stream_reader(part, read_across_frames=True) as stream:
            data = stream.read(allowed + 1)
        if len(data) <= allowed and len(data) != info.file_size:
            raise EOFError(f"{len(data)} bytes, expected {info.file_size}")
    else:
        with archive.open(info) as member:
            data = member.read(allowed + 1)
    return data if len(data) <= allowed else None


class _Part(io.RawIOBase):
    """The packed bytes of a member: those behind its own header, which names their beginning."""

    def __init__(self, raw: IO[bytes], info: zipfile.ZipInfo) -> None:
        raw.seek(info.header_offset)
        mark, *_, name, extra = _LOCAL.unpack(raw.read(_LOCAL.size))
        if mark != b"PK\x03\x04":
            raise zipfile.BadZipFile("its header is damaged")
        raw.seek(name + extra, io.SEEK_CUR)
        self._raw, self._left = raw, info.compress_size

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; 0 at the end of the member."""
        data = self._raw.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)
