"""Files of records, a line each, that are only ever added to: every line has the digest of the one before."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from pipeline.locks import hold
from pipeline.remote.attached import pulled, swap
from schemas.canonical import canonical_json
from schemas.decisions import Record
from schemas.errors import DataError, LockedError
from schemas.foreign import parse_json

PATIENCE_S = 60.0
"""How long another process may hold a chain that several runs share. Holding it takes milliseconds."""

R = TypeVar("R", bound=Record)


def read_chain(path: Path, kind: type[R]) -> list[R]:
    """The records of a file, oldest first; none where there is no file.

    A last line without its end was being written when its process died: it never counted.

    Raises:
        DataError: naming the line that was changed, or that does not follow the one before; or where what stands at
            the end is not even the beginning of a record.
    """
    pulled(path, anew=False)
    found: list[R] = []
    for number, line in enumerate(_lines(path), start=1):
        where = f"{path}, line {number}"
        try:
            record = kind.model_validate(parse_json(line))
        except (ValueError, ValidationError) as error:
            raise DataError(f"{where}: not a record of this release ({str(error).splitlines()[0]})") from None
        if record.digest != record.own_digest():
            raise DataError(f"{where}: its digest does not follow from its content: it was changed. Restore the file.")
        if record.parent != (found[-1].digest if found else ""):
            raise DataError(f"{where}: it does not follow line {number - 1}: lines were taken out. Restore the file.")
        found.append(record)
    begun, head = _end(path), f'{{"{min(kind.model_fields)}":'.encode()
    if begun[: len(head)] != head[: len(begun)]:
        raise DataError(f"{path}: its last {len(begun)} bytes are no record that was being written. Restore the file.")
    return found


def append(path: Path, before: list[R], draft: R) -> R:
    """Add a record, durably; returns it with its parent and its digest. `held` must be open around this and reading.

    Args:
        path: the file.
        before: what `read_chain` gave.
        draft: the record without them.
    """
    linked = draft.model_copy(update={"parent": before[-1].digest if before else ""})
    record = linked.model_copy(update={"digest": linked.own_digest()})
    known = b"".join(line + b"\n" for line in _lines(path))
    line = canonical_json(record.model_dump(mode="json")).encode() + b"\n"
    swap(path, known + line)
    with path.open("ab") as file:
        file.truncate(len(known))  # half a line of a process that died
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return record


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a chain for reading and adding to it, waiting for others who do.

    Raises:
        LockedError: when another process holds it for a minute.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            with hold(path.with_name(f".{path.name}.lock"), str(path)):
                pulled(path, anew=True)
                yield
                return
        except LockedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _lines(path: Path) -> list[bytes]:
    return _parts(path)[:-1]


def _end(path: Path) -> bytes:
    """What stands behind the last whole line."""
    return _parts(path)[-1]


def _parts(path: Path) -> list[bytes]:
    if not path.exists():
        return [b""]
    if path.is_dir():
        raise DataError(f"{path} is a folder, expected a file of records. Restore the file.")
    return path.read_bytes().split(b"\n")
