"""What was asked and what was answered, in each of the forms that a line with a chat has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.ingest.answers import Answer, answer_of
from stages.ingest.messages import messages_of
from stages.ingest.requests import Request, known, request_of
from stages.ingest.values import text, unpacked

_ANSWERS = ("response", "completion", "output", "answer", "generation")
"""What a chat that ends with the user's words has beside it."""
_ASSISTANTS = ("gpt", "bot", "chatgpt", "model")


def asked_and_answered(value: Mapping[str, Any]) -> tuple[Request, Answer | None]:
    """The request of a line, and its answer where it has one."""
    asked = unpacked(value.get("request"))
    if isinstance(asked, Mapping):
        return request_of(asked), answer_of(value.get("response"))
    if value.get("object") == "response":
        return request_of(value), answer_of(value)
    if isinstance(turns := unpacked(value.get("conversations")), list) and "messages" not in value:
        value = {**value, "messages": [_turn(item) for item in turns]}
    return _pair(value) if "messages" not in value and "completion" in value else _of_chat(value)


def _request(value: Mapping[str, Any]) -> Request:
    return request_of({name: held for name, held in value.items() if name not in ("completion", "choices")})


def _pair(value: Mapping[str, Any]) -> tuple[Request, Answer | None]:
    """A prompt with its completion."""
    request = _request(value)
    prompt = messages_of(value["prompt"]) if isinstance(value["prompt"], list) else request.messages
    return Request(prompt, request.tools, request.model, request.settings), answer_of(value["completion"])


def turns_of(value: Mapping[str, Any]) -> tuple[dict[str, Any], ...] | None:
    """What was said after the prompt, where the completion is a conversation in which the model answers repeatedly."""
    if "messages" in value or not isinstance(value.get("completion"), list):
        return None
    said = messages_of(value["completion"]) or ()
    return said if sum(turn["role"] == "assistant" for turn in said) > 1 else None


def _of_chat(value: Mapping[str, Any]) -> tuple[Request, Answer | None]:
    """A chat with its response beside it; else what the assistant says last, and what stands before that."""
    request = _request(value)
    if isinstance(value.get("choices"), list):
        return request, answer_of({"choices": value["choices"], "model": value.get("model")})
    messages = request.messages or ()
    if messages and messages[-1]["role"] != "assistant":
        beside = next((value[name] for name in _ANSWERS if value.get(name)), None)
        if (answer := answer_of(beside)) is not None:
            return request, answer
    place = next((place for place in reversed(range(len(messages))) if messages[place]["role"] == "assistant"), None)
    if place is None:
        return request, None
    prompt = messages[:place] or None
    answer = Answer(messages[place], finish_reason=text(value.get("finish_reason")), model=text(value.get("model")))
    return Request(prompt, request.tools, request.model, known(request.settings)), answer


def _turn(item: Any) -> Any:
    """A turn `{from, value}` as a message."""
    if not isinstance(item, Mapping) or "from" not in item:
        return item
    role = str(item["from"]).lower()
    return {"role": "assistant" if role in _ASSISTANTS else role, "content": item.get("value")}
