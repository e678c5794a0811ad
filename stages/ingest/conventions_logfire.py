"""Logfire's instrumentations of clients and of OpenAI's Agents SDK, where they do not speak GenAI: `request_data`.

Of a streamed response, the request is a span and the answer a record beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stages.ingest.answers import Answer, answer_of
from stages.ingest.conventions import NOTHING, Findings
from stages.ingest.requests import Request, call_of, request_of
from stages.ingest.values import text, unpacked

_AGENT, _TOOL = "Agent run: {name!r}", "Function: {name}"
"""The names that spans of the Agents SDK have."""
_LEFT_OPEN = re.compile(r"<[\w.]+ object at 0x[0-9a-f]+>|NOT_GIVEN")
"""How Python prints an argument that was not given."""


def may_know(names: Sequence[str]) -> bool:
    """Whether `findings` may know a span whose attributes have these names."""
    return "request_data" in names or "logfire.msg_template" in names


def is_record(attributes: Mapping[str, Any]) -> bool:
    """Whether a span is Logfire's form of a log record."""
    return attributes.get("logfire.span_type") == "log"


def findings(name: str, attributes: Mapping[str, Any], events: Sequence[Any], scope: str) -> Findings:
    """What Logfire's attributes say."""
    if name == _AGENT:
        offers = any(unpacked(attributes.get(held)) for held in ("tools", "handoffs"))
        return Findings("agent", text(attributes.get("name")), offers=offers)
    if name == _TOOL:
        return Findings("tool", inputs=unpacked(attributes.get("input")), outputs=unpacked(attributes.get("output")))
    data = unpacked(attributes.get("request_data"))
    if not isinstance(data, Mapping) or "gen_ai.operation.name" in attributes:
        return NOTHING
    if "model_config" in attributes and "output" in attributes:  # the Agents SDK: `request_data` has the answer too
        return _of_agents(attributes)
    given = {key: value for key, value in data.items() if not (isinstance(value, str) and _LEFT_OPEN.fullmatch(value))}
    request = request_of(given)
    if request.messages is None:
        return NOTHING
    return _found(request, _answer(unpacked(attributes.get("response_data"))), attributes)


def _of_agents(attributes: Mapping[str, Any]) -> Findings:
    settings = unpacked(attributes.get("model_config"))
    settings = settings if isinstance(settings, Mapping) else {}
    request = request_of({**settings, "messages": unpacked(attributes.get("input"))})
    said = unpacked(attributes.get("output"))
    answer = answer_of(said[0] if isinstance(said, list) and len(said) == 1 else said)
    return NOTHING if request.messages is None else _found(request, answer, attributes)


def _answer(data: Any) -> Answer | None:
    if not isinstance(data, Mapping):
        return None
    if isinstance(streamed := data.get("combined_chunk_content"), str):
        return answer_of(streamed) if data.get("chunk_count") else None
    return answer_of(data)


def _found(request: Request, answer: Answer | None, attributes: Mapping[str, Any]) -> Findings:
    asked = next((said["content"] for said in reversed(request.messages or ()) if said["role"] == "user"), None)
    made = call_of(request, answer, model=text(attributes.get("gen_ai.response.model")))
    said = answer.message["content"] if answer is not None and answer.message else None
    return Findings("llm", inputs=asked, outputs=said, call=made)
