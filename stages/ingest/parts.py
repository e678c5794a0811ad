"""What one message holds: text, reasoning, tool calls, from the ways in which APIs and tools write it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TEXT, _THINKING = (
    frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"}),
    frozenset({"reasoning", "thinking"}),
)
_CALLS = frozenset({"tool_call", "tool_use", "tool-call", "function_call"})
_RESULTS = frozenset({"tool_call_response", "tool_result", "tool-result", "function_call_output"})
_CALL_KEYS, _RESULT_KEYS = ("function_call", "toolUse"), ("function_response", "toolResult")
"""Gemini and Bedrock give a part no type, but a key."""


@dataclass(frozen=True)
class Content:
    """What a message holds, by kind."""

    text: str
    reasoning: str | None = None
    tool_calls: tuple[Any, ...] = ()
    other: bool = False
    """Whether it also holds what is no text: an image, a file."""
    results: tuple[str | None, ...] = ()
    """The ids of the tool calls whose results it holds, where it holds nothing else."""


def content_of(value: Any) -> Content:
    """The content of a message: a text, an object with one, or a list of parts in any of the usual forms."""
    if value is None:
        return Content("")
    if isinstance(value, str):
        return Content(value)
    if isinstance(value, dict):
        held = value.get("parts")
        return content_of(held if isinstance(held, list) else [value])
    if not isinstance(value, Sequence):
        return Content("", other=True)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Any] = []
    results: list[str | None] = []
    other = False
    for part in value:
        kind = _kind(part)
        if kind == "call":
            calls.append(dict(part))
        elif kind == "thought":
            thoughts.append(_first_text(part) or "")
        elif kind == "result":
            texts.append(_result(part))
            results.append(_call_id(part))
        elif kind == "text":
            texts.append(part if isinstance(part, str) else _first_text(part) or "")
        else:
            other = True
    alone = len(results) == len(value)
    return Content("".join(texts), "".join(thoughts) or None, tuple(calls), other, tuple(results) if alone else ())


def _kind(part: Any) -> str | None:
    if isinstance(part, str):
        return "text"
    if not isinstance(part, dict):
        return None
    kind = part.get("type")
    kind = kind if isinstance(kind, str) else None
    if kind in _CALLS or any(key in part for key in _CALL_KEYS):
        return "call"
    if kind in _THINKING or part.get("thought") is True or "reasoningContent" in part:
        return "thought"
    if kind in _RESULTS or any(key in part for key in _RESULT_KEYS):
        return "result"
    return "text" if kind in (None, *_TEXT) and _first_text(part) is not None else None


def _first_text(part: Mapping[str, Any]) -> str | None:
    for name in ("text", "content", "thinking", "reasoning"):
        if isinstance(found := part.get(name), str):
            return found
    held = part.get("reasoningContent")
    return _first_text(held.get("reasoningText") or held) if isinstance(held, dict) else None


def _call_id(part: Mapping[str, Any]) -> str | None:
    held = part.get("toolResult")
    names = ("tool_use_id", "tool_call_id", "toolCallId", "toolUseId", "call_id", "id")
    found = ((held if isinstance(held, dict) else part).get(name) for name in names)
    return next((item for item in found if isinstance(item, str) and item), None)


def _result(part: Mapping[str, Any]) -> str:
    for name in ("response", "result", "output", "content", *_RESULT_KEYS):
        if (found := part.get(name)) is not None:
            found = found["value"] if isinstance(found, dict) and "value" in found else found  # Vercel's
            return found if isinstance(found, str) else content_of(found).text or as_json(found)
    return ""


def as_json(value: Any) -> str:
    """A value as text, where a text is wanted and it is none."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
