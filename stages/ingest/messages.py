"""Chat messages in normal form, from the ways in which tools log them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.ingest.parts import content_of
from stages.ingest.responses import chat_items, is_items
from stages.ingest.values import unpacked

_ROLES = {
    "human": "user",
    "ai": "assistant",
    "aichunk": "assistant",
    "model": "assistant",
    "function": "tool",
    "developer": "system",
}
_JSON_OF_PARTS = '[{"type":'
_TYPES = frozenset({"human", "ai", "system", "tool", "function", "user", "assistant", "developer", "chat"})
"""LangChain names the role `type`; in other lists the type says what a part is."""


def message(role: Any, value: Any, extra: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """One message in normal form; None where it has no role.

    Args:
        role: as logged.
        value: its content, as logged.
        extra: the message's other fields, from which tool calls and the like are taken.
    """
    if not isinstance(role, str) or not role:
        return None
    role = _ROLES.get(role.lower(), role.lower())
    found, extra = content_of(value if role == "assistant" else _without_json(value)), extra or {}
    made: dict[str, Any] = {"role": role, "content": found.text}
    if found.results:  # Anthropic, Bedrock and Gemini log the results of tools as what the user says
        made["role"] = "tool"
        if len(found.results) == 1 and found.results[0]:
            made["tool_call_id"] = found.results[0]
    calls = list(found.tool_calls) or _tool_calls(extra)
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


def _without_json(value: Any) -> Any:
    """Parts out of their JSON, which OpenLLMetry's LangChain makes the text of one part."""
    only = value[0] if isinstance(value, list) and len(value) == 1 else None
    held = only.get("content") if isinstance(only, dict) and only.get("type") == "text" else None
    if not isinstance(held, str) or not held.startswith(_JSON_OF_PARTS):
        return value
    found = unpacked(held)
    return found if isinstance(found, list) and all(isinstance(item, dict) for item in found) else value


def _tool_calls(extra: Mapping[str, Any]) -> list[Any]:
    """Tool calls that stand beside the content, by the first of the usual names."""
    beside = extra.get("additional_kwargs")
    for held in (extra, beside if isinstance(beside, dict) else {}):
        for name in ("tool_calls", "toolCalls", "function_call"):
            if calls := _listed(held.get(name)):
                return calls
    return []


def _listed(value: Any) -> list[Any]:
    value = unpacked(value)
    return list(value) if isinstance(value, list) else [value] if isinstance(value, dict) and value else []


def messages_of(value: Any) -> tuple[dict[str, Any], ...] | None:
    """Messages from a list of them, an object that holds one, or one message; None for anything else.

    A message has `role` and `content` (or `parts`, or `text`), is LangChain's `type` and `content`, or an item of the
    Responses API.
    """
    value = unpacked(value)
    if isinstance(value, dict):
        for name in ("messages", "input_messages", "input", "contents"):
            if isinstance(held := unpacked(value.get(name)), list):
                return messages_of(held)
        value = [value]
    if not isinstance(value, list) or not value:
        return None
    plain: list[dict[str, Any]] = []
    for item in value:
        if (made := plain_message(item)) is None:
            break
        plain.append(made)
    else:
        return tuple(plain)
    if len(value) == 1 and isinstance(value[0], list):  # LangChain logs a batch of one
        return messages_of(value[0])
    value = [unpacked(item) for item in value]
    found = [one_message(item) for item in (chat_items(value) if is_items(value) else value)]
    return None if any(item is None for item in found) else tuple(item for item in found if item is not None)


_PLAIN = frozenset({"role", "content", "parts", "finish_reason"})
_PLAIN_ROLES = {role: role for role in ("system", "user", "assistant")}


def plain_message(value: Any) -> dict[str, Any] | None:
    """A message of a role and one text, which most are, without a search for what else it might hold; as `message`."""
    if type(value) is not dict or not value.keys() <= _PLAIN or type(role := value.get("role")) is not str or not role:
        return None
    said = value.get("content", value.get("parts"))
    if type(said) is list and len(said) == 1 and type(part := said[0]) is dict:
        said = part.get("text", part.get("content")) if len(part) == 2 and part.get("type") == "text" else None
    if type(said) is not str or (said.startswith(_JSON_OF_PARTS) and "parts" in value):
        return None
    return {"role": _PLAIN_ROLES.get(role) or _ROLES.get(role.lower(), role.lower()), "content": said}


def one_message(value: Any) -> dict[str, Any] | None:
    """One message in normal form; None where the value is none."""
    if not isinstance(value, dict):
        return None
    inner = value.get("kwargs")
    if isinstance(inner, dict) and "content" in inner:  # LangChain's serialized messages
        kinds = value.get("id")
        last = str(kinds[-1]) if isinstance(kinds, list) and kinds else ""
        return message(inner.get("type") or _class_role(last), inner["content"], inner)
    held = value.get("message")
    if isinstance(held, dict) and "role" in held:
        return one_message(held)
    if isinstance(value.get("data"), dict) and "content" in value["data"]:  # LangChain's older form
        return message(_role(value), value["data"]["content"], value["data"])
    role = _role(value)
    for name in ("content", "parts", "text"):
        if name in value:
            return message(role, value[name], value)
    return message(role, None, value) if _tool_calls(value) else None


def _class_role(name: str) -> str:
    return name.replace("Message", "").lower()


def _role(value: Mapping[str, Any]) -> str | None:
    role, kind = value.get("role"), value.get("type")
    if isinstance(role, str) and role:
        return role
    if not isinstance(kind, str):
        return None
    kind = _class_role(kind) if kind.endswith(("Message", "MessageChunk")) else kind
    return kind if kind in _TYPES or kind in _ROLES else None
