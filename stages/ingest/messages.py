"""Chat messages and completions, from the ways in which tools log them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.ingest.values import unpacked

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "model": "assistant",
    "function": "tool",
    "developer": "system",
}
_TEXT, _THINKING = frozenset({"text", "input_text", "output_text"}), frozenset({"reasoning", "thinking"})
_CALLS = frozenset({"tool_call", "tool_use", "tool-call", "function_call"})
_RESULTS = frozenset({"tool_call_response", "tool_result", "tool-result", "function_call_output"})


@dataclass(frozen=True)
class Content:
    """What a message holds, by kind."""

    text: str
    reasoning: str | None = None
    tool_calls: tuple[Any, ...] = ()
    other: bool = False
    """Whether it also holds what is no text: an image, a file."""


def content_of(value: Any) -> Content:
    """The content of a message: a text, an object with one, or a list of parts in any of the usual forms."""
    if value is None:
        return Content("")
    if isinstance(value, str):
        return Content(value)
    if isinstance(value, Mapping):
        return content_of([value])
    if not isinstance(value, Sequence):
        return Content("", other=True)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Any] = []
    other = False
    for part in value:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            texts.append(part)
        elif not isinstance(part, Mapping):
            other = True
        elif kind in _CALLS or "function_call" in part:
            calls.append(dict(part))
        elif kind in _THINKING:
            thoughts.append(_first_text(part) or "")
        elif kind in _RESULTS or "function_response" in part:
            texts.append(_result(part))
        elif (found := _first_text(part)) is not None and kind in (None, *_TEXT):
            texts.append(found)
        else:
            other = True
    return Content("".join(texts), "".join(thoughts) or None, tuple(calls), other)


def _first_text(part: Mapping[str, Any]) -> str | None:
    for name in ("text", "content", "thinking", "reasoning"):
        if isinstance(found := part.get(name), str):
            return found
    return None


def _result(part: Mapping[str, Any]) -> str:
    for name in ("response", "result", "output", "content", "function_response"):
        if (found := part.get(name)) is not None:
            return found if isinstance(found, str) else content_of(found).text or _json(found)
    return ""


def _json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def message(role: Any, value: Any, extra: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """One message in normal form; None where it has no role.

    Args:
        role: as logged.
        value: its content, as logged.
        extra: the message's other fields, from which tool calls and the like are taken.
    """
    if not isinstance(role, str) or not role:
        return None
    found, extra = content_of(value), extra or {}
    made: dict[str, Any] = {"role": _ROLES.get(role.lower(), role.lower()), "content": found.text}
    calls = [*found.tool_calls, *_listed(extra.get("tool_calls")), *_listed(extra.get("toolCalls"))]
    if calls:
        made["tool_calls"] = calls
    for name in ("tool_call_id", "name"):
        if isinstance(extra.get(name), str):
            made[name] = extra[name]
    thought = found.reasoning or extra.get("reasoning_content") or extra.get("reasoning")
    if isinstance(thought, str) and thought:
        made["reasoning"] = thought
    if found.other:
        made["other_content"] = True
    return made


def _listed(value: Any) -> list[Any]:
    value = unpacked(value)
    return list(value) if isinstance(value, list) else [value] if isinstance(value, Mapping) and value else []


def messages_of(value: Any) -> tuple[dict[str, Any], ...] | None:
    """Messages from a list of them, an object that holds one, or one message; None for anything else.

    A message has `role` and `content` (or `parts`, or `text`), or is LangChain's `type` and `content`.
    """
    value = unpacked(value)
    if isinstance(value, Mapping):
        for name in ("messages", "input_messages", "input", "contents"):
            if isinstance(held := unpacked(value.get(name)), list):
                return messages_of(held)
        value = [value]
    if not isinstance(value, list) or not value:
        return None
    if len(value) == 1 and isinstance(value[0], list):  # LangChain logs a batch of one
        return messages_of(value[0])
    found = [_message_of(unpacked(item)) for item in value]
    return None if any(item is None for item in found) else tuple(item for item in found if item is not None)


def _message_of(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, Mapping):
        return None
    role = value.get("role") or value.get("type")
    if isinstance(value.get("kwargs"), Mapping) and "content" in value["kwargs"]:  # LangChain's serialized messages
        inner = value["kwargs"]
        return message(
            inner.get("type") or str((value.get("id") or [""])[-1]).removesuffix("Message"), inner["content"], inner
        )
    if isinstance(value.get("message"), Mapping) and "role" in value["message"]:
        return _message_of(value["message"])
    for name in ("content", "parts", "text"):
        if name in value:
            return message(role, value[name], value)
    return message(role, None, value) if value.get("tool_calls") else None
