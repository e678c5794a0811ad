"""How much of a rollout is shown: a sample in a page has to be small, a rollout that was asked for may be large."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Item = TypeVar("Item")
Text = str | dict[str, Any]
"""A text, or {head, left_out, tail} where its middle was left out (`left_out` in characters)."""


@dataclass(frozen=True)
class Bounds:
    """The most that is shown of each thing; what is left out in the middle is counted."""

    calls: int
    messages: int
    message: int
    """Characters."""
    completion: int
    """Characters."""
    field: int
    """Characters of inputs, output and error."""
    tokens: int
    """Tokens of a completion."""


SHORT = 70
"""Characters of JSON that need no second line."""
SAMPLE = Bounds(calls=10, messages=6, message=1200, completion=2000, field=800, tokens=400)
WHOLE = Bounds(calls=100, messages=60, message=20_000, completion=60_000, field=20_000, tokens=4_000)


def clip(text: str, most: int) -> Text:
    """A text of at most `most` characters: its two ends, and how much is missing between them."""
    if len(text) <= most:
        return text
    half = most // 2
    return {"head": text[:half], "left_out": len(text) - 2 * half, "tail": text[-half:]}


def ends(items: Sequence[Item], most: int) -> list[Item]:
    """At most `most` items: the first ones and the last ones, which carry the task and its result."""
    return list(items) if len(items) <= most else [*items[: most // 2], *items[-(most - most // 2) :]]


def laid_out(value: str | None, most: int) -> Text | None:
    """A column that may hold JSON, as a person reads it; text that is no JSON as it is."""
    if value is None:
        return None
    try:
        return content(json.loads(value), most)
    except (ValueError, RecursionError):
        return clip(value, most)


def content(value: Any, most: int) -> Text:
    """Text as it is; anything else (parts of a message, structured fields) as JSON, on one line where that is short."""
    if isinstance(value, str):
        return clip(value, most)
    line = json.dumps(value, ensure_ascii=False)
    return clip(line if len(line) <= SHORT else json.dumps(value, ensure_ascii=False, indent=1), most)
