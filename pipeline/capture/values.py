"""Values of a program as they are stored: JSON texts, UTF-8, and error messages without secrets."""

from __future__ import annotations

import json
import math
import re
import traceback
from collections.abc import Collection, Mapping
from typing import Any

from schemas.canonical import storable
from stages.programs.jsonable import json_text, jsonable

_SECRETS = re.compile(
    r"(?i)(?P<before>\b(?:bearer|basic)\s+|://[^/\s:@]*:"
    r"|(?:api[-_ ]?key|token|password|secret|authorization)[\"']?\s*[:=]\s*[\"']?(?:bearer\s+|basic\s+)?)"
    r"[^\s\"',}@]+|\b(?:sk|pk|hf|ghp|xox[bp])[-_][A-Za-z0-9_*-]{6,}"
)
_LONGEST = 4096
"""Characters of an error message."""


def stored(value: Any) -> tuple[str | None, int]:
    """A value as JSON text, and how many of its parts have no JSON form.

    A mapping keeps its other entries; any other value without a JSON form is None.
    """
    if value is None:
        return None, 0
    try:
        return json_text(value), 0
    except TypeError:
        if not isinstance(value, Mapping):
            return None, 1
    parts = {str(name): stored(item) for name, item in value.items()}
    held = ",".join(f"{json.dumps(name)}:{text}" for name, (text, lost) in parts.items() if not lost and text)
    return f"{{{held}}}", sum(bool(lost) for _, lost in parts.values())


def stored_messages(value: Any) -> str | None:
    """Chat messages as JSON text; None where they are no list of plain values."""
    if not isinstance(value, (list, tuple)):
        return None
    text = json.dumps(jsonable(value), ensure_ascii=False, allow_nan=False)
    return storable(text)


def text(value: Any) -> str | None:
    """A text that can be stored; None for anything else."""
    return storable(value) if isinstance(value, str) else None


def whole(value: Any, limit: int = 63) -> int | None:
    """A whole number of at most so many bits; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**limit else None


def finite(value: Any) -> float | None:
    """A finite number, also of true and false; None for anything else."""
    try:
        found = float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def ids(value: Any) -> list[int] | None:
    """Token ids: a list, not empty, of whole numbers that are not negative; None for anything else."""
    if not isinstance(value, (list, tuple)) or not value:
        return None
    return list(value) if all(whole(item, 31) is not None and item >= 0 for item in value) else None


def described(error: BaseException, secrets: Collection[str] = ()) -> str:
    """An error as text, without what looks like a key or password and without these secrets."""
    said = "".join(traceback.format_exception_only(error)).strip()[:_LONGEST]
    for secret in secrets:
        said = said.replace(secret, "***") if secret else said
    return storable(_SECRETS.sub(lambda found: f"{found['before'] or ''}***", said))
