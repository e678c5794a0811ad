"""Items of OpenAI's Responses API as chat messages: one answer of a model stands there in several items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.ingest.parts import as_json, content_of

_IDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
"""That NeMo-Gym puts on the last item of each answer."""


def is_items(values: Sequence[Any]) -> bool:
    """Whether a list holds items that chat messages do not have."""
    return any(isinstance(item, Mapping) and _kind(item) in ("call", "result", "reasoning") for item in values)


def chat_items(items: Sequence[Any]) -> list[Any]:
    """The items as chat messages; what is none of the API's items stays as it is.

    Reasoning, text and tool calls that follow each other are one answer, which has at most one text. Ids that an item
    carries end the answer, and are put on it.
    """
    made: list[Any] = []
    open_ = False  # whether the last of `made` is an answer that more items may belong to
    for item in items:
        kind = _kind(item)
        if kind == "result":
            made.append({"role": "tool", "content": _output(item), "tool_call_id": item.get("call_id")})
            open_ = False
        elif kind is None:
            made.append(item)
            open_ = False
        else:
            if not open_ or (kind == "message" and made[-1]["content"]):
                made.append({"role": "assistant", "content": "", "tool_calls": [], "reasoning": ""})
            _add(made[-1], item, kind)
            open_ = not any(item.get(name) for name in _IDS)
    return made


def _kind(item: Any) -> str | None:
    if not isinstance(item, Mapping) or not isinstance(kind := item.get("type"), str):
        return None
    if kind == "message" and item.get("role") == "assistant":
        return "message"
    if "role" in item:
        return None
    if kind.endswith("_call_output"):
        return "result"
    return "call" if kind.endswith("_call") else "reasoning" if kind == "reasoning" else None


def _output(item: Mapping[str, Any]) -> str:
    found = item.get("output")
    return found if isinstance(found, str) else content_of(found).text or as_json(found)


def _add(answer: dict[str, Any], item: Mapping[str, Any], kind: str) -> None:
    if kind == "message":
        content = content_of(item.get("content"))
        answer["content"] = content.text
        answer["reasoning"] += content.reasoning or ""
    elif kind == "call":
        answer["tool_calls"].append({name: value for name, value in item.items() if name not in _IDS})
    else:
        answer["reasoning"] += content_of(item.get("summary")).text or content_of(item.get("content")).text
    answer.update({name: item[name] for name in _IDS if item.get(name)})
