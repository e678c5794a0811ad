"""Canonical JSON and digests: the one encoding from which every key and digest is made.

Equal values give equal bytes: keys sorted, no spaces, UTF-8, floats in Python's shortest round-trip form.
What cannot be encoded without loss is refused, so that no key ever depends on a `repr`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

_probe: Callable[[Any], object] | None
try:
    from orjson import dumps as _probe
except ImportError:  # a program that captures its runs has pyarrow alone; the bytes are the same
    _probe = None

_CHUNK = 1 << 20
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def _check(value: object, path: str) -> None:
    if value is None or isinstance(value, (bool, int)):
        return
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise TypeError(f"{path}: text with a lone surrogate has no UTF-8 form") from None
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{path}: {value} has no JSON form")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{path}: key {key!r} is {type(key).__name__}, expected str")
            _check(key, path)
            _check(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]")
    else:
        raise TypeError(f"{path}: {type(value).__name__} has no canonical JSON form")


def canonical_json(value: Any) -> str:
    """The canonical JSON text of `value`.

    Raises:
        TypeError: for anything but None, bool, int, finite float, str, list, tuple and str-keyed dict.
    """
    # Two encoders in C refuse together what `_check` does, in a tenth of its time: orjson keys that are no text and
    # text without UTF-8, `json` other types and numbers that are not finite. Whole numbers of more than 64 bits, which
    # orjson does not know, are left to `_check`, which also says what is wrong where something is.
    try:
        if _probe is None:
            _check(value, "$")
        else:
            _probe(value)
        return _encode(value)
    except (TypeError, ValueError):
        _check(value, "$")
        return _encode(value)


def digest(value: Any) -> str:
    """sha256, in hex, of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def digest_bytes(data: bytes) -> str:
    """sha256, in hex, of bytes."""
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """sha256, in hex, of a file's bytes."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            state.update(chunk)
    return state.hexdigest()


def digest_files(files: dict[str, str]) -> str:
    """Digest of a set of files, from their relative POSIX paths and the sha256 of their bytes."""
    return digest([[path, files[path]] for path in sorted(files)])


def seed_from(*parts: str | int) -> int:
    """A 63-bit seed that is a pure function of its parts, whatever the process or platform."""
    return int(digest(list(parts))[:16], 16) >> 1


def storable(text: str) -> str:
    """A text as it can be stored: what has no UTF-8 form (a file name's stray byte, half of an emoji) becomes "?"."""
    return text.encode(errors="replace").decode()
