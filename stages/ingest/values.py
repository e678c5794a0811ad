"""Values as logs spell them: times, ids, numbers, and JSON inside of strings."""

from __future__ import annotations

import base64
import binascii
import math
import re
from datetime import UTC, datetime
from typing import Any

import orjson

_HEX = re.compile(r"(0x)?[0-9a-fA-F]+")
_LOWER_HEX = re.compile(r"[0-9a-f]+")
_LENGTHS = (16, 32)
_ISO = re.compile(r"(\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2})(\.\d+)?\s*(Z|UTC|GMT|[+-]\d{2}:?\d{2})?")
_DIGITS = 19
"""A time in nanoseconds has so many until the year 2286."""
_LATEST = 10**_DIGITS
_OPENING = frozenset('{["')
_DEEP = 4
"""Most times that JSON is looked for within a string of JSON."""


def nanoseconds(value: Any) -> int | None:
    """A time as nanoseconds since 1970, or None.

    From ISO-8601 text (without an offset: UTC); from a number of seconds, milliseconds, microseconds or nanoseconds,
    told apart by its size; or from a list of seconds and nanoseconds.
    """
    if isinstance(value, str):
        return _of_text(value)
    if isinstance(value, (list, tuple)):
        pair = [number(part) for part in value]
        return None if len(pair) != 2 or None in pair else int(pair[0]) * 10**9 + int(pair[1])  # type: ignore[arg-type]
    fine = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not fine or not 0 < value < _LATEST:
        return None
    scale = 10 ** (3 * round((_DIGITS - len(str(int(value)))) / 3)) if value >= 1 else 0
    return value * scale if isinstance(value, int) else round(value * 1e6) * scale // 10**6


def _of_text(text: str) -> int | None:
    if len(text) == _DIGITS and text[0] != "0" and text.isdecimal():  # as OTLP has it
        return int(text)
    if found := _ISO.fullmatch(text.strip()):
        return _of_iso(*found.groups())
    return nanoseconds(integer(text) if text.strip().isdecimal() else number(text))


def _of_iso(moment: str, fraction: str | None, offset: str | None) -> int | None:
    zone = "+00:00" if offset in (None, "Z", "UTC", "GMT") else offset
    try:
        whole = datetime.fromisoformat(moment.replace(" ", "T") + str(zone))
    except ValueError:
        return None
    seconds = int((whole - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    return seconds * 10**9 + int((fraction or ".0")[1:10].ljust(9, "0"))


def identity(value: Any) -> str | None:
    """An id as text, the same however it is spelt, or None for nothing and for ids of zeros, which mean nothing.

    Hex in lower case without 0x, base64 of 8 or 16 bytes as hex, other text as it is.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    text = value.strip() if isinstance(value, str) else ""
    if text.strip("0x-") == "":
        return None
    if _LOWER_HEX.fullmatch(text) and len(text) in _LENGTHS:
        return text
    if _HEX.fullmatch(text) and len(text.removeprefix("0x")) in _LENGTHS:
        return text.removeprefix("0x").lower()
    return _of_base64(text) or text


def _of_base64(text: str) -> str | None:
    if len(text) not in (12, 24) or not text.endswith("="):
        return None
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw.hex() if any(raw) else None


def number(value: Any) -> float | None:
    """A finite number, also from text or from true and false; None for anything else."""
    if value is None:
        return None
    try:
        found = float(value) if isinstance(value, (int, float, str)) else math.nan
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def integer(value: Any) -> int | None:
    """A whole number, also from text; None for anything else."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = value.strip()
        value = int(value) if value.lstrip("-").isdecimal() and len(value) < 40 else number(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) else None


def text(value: Any) -> str | None:
    """A text that is not empty; None for anything else."""
    return value if isinstance(value, str) and value else None


def unpacked(value: Any) -> Any:
    """A value out of its strings of JSON: a text that is JSON of an object, a list or a text, however often encoded."""
    if not isinstance(value, str):
        return value
    for _ in range(_DEEP):
        if not isinstance(value, str) or (value[:1] not in _OPENING and value.lstrip()[:1] not in _OPENING):
            break
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            break
    return value


def ids(value: Any) -> tuple[int, ...] | None:
    """Token ids: a list, not empty, of whole numbers that are not negative; None for anything else."""
    value = unpacked(value)
    if not isinstance(value, list) or not value:
        return None
    fine = all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31 for item in value)
    return tuple(value) if fine else None


def floats(value: Any) -> tuple[float, ...] | None:
    """Log-probabilities: a list, not empty, of finite numbers; None for anything else."""
    value = unpacked(value)
    if not isinstance(value, list) or not value:
        return None
    found = [number(item) if not isinstance(item, (str, bool)) else None for item in value]
    return None if any(item is None for item in found) else tuple(item for item in found if item is not None)


_WORDS = {"yes": 1.0, "true": 1.0, "pass": 1.0, "no": 0.0, "false": 0.0, "fail": 0.0}


def judged(value: Any) -> float | None:
    """A judgement as a number: also "yes" and "no", "true" and "false", "pass" and "fail"."""
    word = _WORDS.get(value.strip().lower()) if isinstance(value, str) else None
    return number(value) if word is None else word
