"""JSON out of files that others may have made: read in bounds, and refused where two readers may differ on it."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import Any

LARGEST = 64 << 20
"""Most bytes of a file that is read at once. A manifest of 300,000 files has as many."""
DEEPEST = 100
"""Most objects and lists within each other."""


def parse_json(data: bytes | str) -> Any:
    """A JSON value.

    Raises:
        ValueError: for what is no JSON in UTF-8, says one key of an object twice, holds a number that is not finite or
            half of a surrogate pair, or is nested more deeply than `DEEPEST`.
    """
    try:
        value = json.loads(data, object_pairs_hook=unique_keys, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check(value, DEEPEST)
    return value


def read_json(path: Path) -> Any:
    """The JSON value of a file. Links to files are followed; devices, pipes and folders are not read.

    Raises:
        OSError: when it cannot be read, as when it is not there.
        ValueError: as `parse_json`, and for a file of more than `LARGEST` bytes.
    """
    return parse_json(read_bounded(path))


def read_bounded(path: Path, most: int = LARGEST) -> bytes:
    """The bytes of a plain file.

    Raises:
        OSError: when it cannot be read.
        ValueError: for what is no plain file, or has more bytes.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is no plain file")
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return data


def lies_within(name: str) -> bool:
    """Whether a name is that of a file below the folder that it is put behind: no `..`, no root, nothing hidden."""
    parts = name.split("/")
    return name.isprintable() and "\\" not in name and all(part and not part.startswith(".") for part in parts)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON from its pairs, as `object_pairs_hook` gets them.

    Raises:
        ValueError: naming a key that stands there twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands there twice")
    return found


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _check(value: Any, deeper: int) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("a text holds half of a surrogate pair") from None
    elif isinstance(value, (dict, list)):
        if not deeper:
            raise ValueError("it is nested too deeply")
        for item in value:
            _check(item, deeper - 1)
        for item in value.values() if isinstance(value, dict) else ():
            _check(item, deeper - 1)
