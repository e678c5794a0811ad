"""OpenInference: `openinference.span.kind`, `llm.*`, `input.value`, `output.value`.

https://github.com/Arize-ai/openinference/blob/main/spec/semantic_conventions.md
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages.ingest.answers import Answer, answer_of, said_by
from stages.ingest.conventions import NOTHING, Findings, logged_tokens, node_of, sampling
from stages.ingest.messages import message, one_message
from stages.ingest.normal import Kind
from stages.ingest.requests import Request, call_of, request_of
from stages.ingest.values import text, unpacked

Messages = tuple[Mapping[str, Any], ...]
_BARE = 2
"""Fields that every message has: its role and its content."""
_KINDS: Mapping[str, Kind] = {
    "LLM": "llm",
    "AGENT": "agent",
    "TOOL": "tool",
    "RETRIEVER": "retriever",
    "CHAIN": "chain",
    "RERANKER": "other",
    "EMBEDDING": "other",
    "GUARDRAIL": "other",
    "EVALUATOR": "other",
}
_SMOLAGENTS = {"tool-call": "assistant", "tool-response": "user"}
_TELLING = frozenset({"openinference.span.kind", "input.value", "llm.model_name"})
_PART = re.compile(r"message\.contents\.(\d+)\.message_content\.(type|text)")
_CALL = re.compile(r"message\.tool_calls\.(\d+)\.tool_call\.(id|function\.name|function\.arguments)")


def may_know(names: Sequence[str]) -> bool:
    """Whether `findings` may know a span whose attributes have these names."""
    return any(name in _TELLING or name.startswith("llm.input_messages") for name in names)


def findings(name: str, attributes: Mapping[str, Any], events: Sequence[Any], scope: str) -> Findings:
    """What OpenInference's attributes say."""
    kind = _KINDS.get(str(attributes.get("openinference.span.kind") or "").upper())
    if kind is None and any(key.startswith("llm.input_messages") for key in attributes):
        kind = "llm"
    if kind is None and "input.value" not in attributes and "llm.model_name" not in attributes:
        return NOTHING
    inputs, outputs = unpacked(attributes.get("input.value")), unpacked(attributes.get("output.value"))
    agent = _agent(attributes)
    if kind != "llm":
        return Findings(kind, agent, inputs, outputs)
    asked = request_of(inputs)
    prompt: Messages | None = _messages(attributes, "llm.input_messages") or _texts(attributes, "llm.prompts")
    prompt = _with_request(prompt, asked.messages or ()) if prompt else asked.messages
    said, whole = _messages(attributes, "llm.output_messages"), answer_of(outputs)
    answer = said_by(said) if said else answer_of(attributes.get("llm.choices.0.completion.text"))
    answer = _with_response(answer, whole) if answer else whole
    settings = unpacked(attributes.get("llm.invocation_parameters"))
    settings = settings if isinstance(settings, dict) else {}
    tools = any(key.startswith("llm.tools") for key in attributes) or bool(settings.get("tools")) or asked.tools
    if not prompt:
        return Findings("llm", agent, inputs, outputs)
    call = call_of(
        Request(tuple(prompt), tools, asked.model, {**asked.settings, **sampling(settings)}),
        answer,
        finish_reason=text(attributes.get("llm.finish_reason")),
        model=text(attributes.get("llm.model_name")),
        **logged_tokens(attributes),
    )
    return Findings("llm", agent, inputs, outputs, call)


def _with_request(prompt: Messages, sent: Messages) -> Messages:
    """The prompt by its attributes, with the request's own messages where an instrumentation lost what they say."""
    if [item["role"] for item in prompt] != [item["role"] for item in sent]:
        return prompt
    return tuple(held if held["content"] or len(held) > _BARE else own for held, own in zip(prompt, sent, strict=True))


def _with_response(answer: Answer, whole: Answer | None) -> Answer:
    """The answer by its attributes, which have no place for all that a response says, with the rest of the response."""
    said, own = answer.message, whole.message if whole else None
    if said is None or own is None or whole is None or said["content"] != own["content"]:
        return answer
    return replace(
        answer,
        message={**{name: own[name] for name in ("reasoning",) if name in own}, **said},
        choices=max(answer.choices, whole.choices),
        finish_reason=answer.finish_reason or whole.finish_reason,
        model=answer.model or whole.model,
        tokens={**whole.tokens, **answer.tokens},
    )


def _agent(attributes: Mapping[str, Any]) -> str | None:
    """The agent's name, or that of the graph's node."""
    metadata = unpacked(attributes.get("metadata"))
    node = node_of(metadata) if isinstance(metadata, dict) else None
    return text(attributes.get("agent.name")) or text(attributes.get("graph.node.id")) or node


def _texts(attributes: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], ...] | None:
    """The prompt of a text completion, as what a user says."""
    listed = unpacked(attributes.get(prefix))
    first = listed[0] if isinstance(listed, list) and len(listed) == 1 else None
    found = text(attributes.get(f"{prefix}.0.prompt.text")) or text(first)
    return ({"role": "user", "content": found},) if found else None


def _messages(attributes: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], ...] | None:
    """Messages from flat attributes `PREFIX.0.message.role`, …; from a list of them where they are nested."""
    if isinstance(nested := unpacked(attributes.get(prefix)), list):
        listed = [_message(_dotted(item)) or one_message(item) for item in nested]
        return tuple(item for item in listed if item is not None) or None
    places: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        if key.startswith(f"{prefix}."):
            place, _, rest = key[len(prefix) + 1 :].partition(".")
            if place.isdecimal():
                places.setdefault(int(place), {})[rest] = value
    found = [_message(places[place]) for place in sorted(places)]
    return _as_sent([item for item in found if item is not None]) or None


def _as_sent(messages: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The messages; those of smolagents, which has roles of its own, as it sends them: neighbours of a role as one."""
    if not any(item["role"] in _SMOLAGENTS for item in messages):
        return tuple(messages)
    sent: list[dict[str, Any]] = []
    for item in messages:
        role = _SMOLAGENTS.get(item["role"], item["role"])
        if sent and sent[-1]["role"] == role:
            sent[-1] = {**sent[-1], **item, "role": role, "content": f"{sent[-1]['content']}\n{item['content']}"}
        else:
            sent.append({**item, "role": role})
    return tuple(sent)


def _dotted(value: Any) -> dict[str, Any]:
    """One message of a nested list, with the keys that it has in flat attributes."""
    found: dict[str, Any] = {}

    def walk(prefix: str, inner: Any) -> None:
        if isinstance(inner, dict):
            for key, item in inner.items():
                walk(f"{prefix}.{key}" if prefix else str(key), item)
        elif isinstance(inner, list):
            for place, item in enumerate(inner):
                walk(f"{prefix}.{place}", item)
        elif inner is not None:
            found[prefix] = inner

    walk("", value)
    return found


def _message(parts: Mapping[str, Any]) -> dict[str, Any] | None:
    contents: dict[int, dict[str, Any]] = {}
    calls: dict[int, dict[str, Any]] = {}
    for key, value in parts.items():
        if part := _PART.fullmatch(key):
            contents.setdefault(int(part[1]), {})[part[2]] = value
        elif call := _CALL.fullmatch(key):
            calls.setdefault(int(call[1]), {})[call[2].removeprefix("function.")] = value
    content = parts.get("message.content")
    if content is None and contents:
        content = [contents[place] for place in sorted(contents)]
    if calls and isinstance(content, list):  # they stand among the parts too, without their names
        content = [part for part in content if part.get("type") != "tool_use"]
    extra: dict[str, Any] = {"tool_calls": [calls[place] for place in sorted(calls)]}
    for name in ("tool_call_id", "name"):
        extra[name] = parts.get(f"message.{name}")
    return message(parts.get("message.role"), content, extra)
