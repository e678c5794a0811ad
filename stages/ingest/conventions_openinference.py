"""OpenInference: `openinference.span.kind`, `llm.*`, `input.value`, `output.value`.

https://github.com/Arize-ai/openinference/blob/main/spec/semantic_conventions.md
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stages.ingest.conventions import Findings, logged_tokens, sampling
from stages.ingest.messages import message, messages_of
from stages.ingest.normal import Call, Kind
from stages.ingest.values import text, unpacked

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
_PART = re.compile(r"message\.contents\.(\d+)\.message_content\.(type|text)")
_CALL = re.compile(r"message\.tool_calls\.(\d+)\.tool_call\.(id|function\.name|function\.arguments)")


def findings(name: str, attributes: Mapping[str, Any], events: Sequence[Any], scope: str) -> Findings:
    """What OpenInference's attributes say."""
    kind = _KINDS.get(str(attributes.get("openinference.span.kind") or "").upper())
    if kind is None and "input.value" not in attributes and "llm.model_name" not in attributes:
        return Findings()
    inputs, outputs = unpacked(attributes.get("input.value")), unpacked(attributes.get("output.value"))
    agent = text(attributes.get("agent.name")) or text(attributes.get("graph.node.id"))
    if kind != "llm":
        return Findings(kind, agent, inputs, outputs)
    prompt = _messages(attributes, "llm.input_messages") or messages_of(inputs)
    if prompt is None and isinstance(inputs, str):
        prompt = ({"role": "user", "content": inputs},)
    answers = _messages(attributes, "llm.output_messages") or messages_of(outputs)
    answer = answers[-1] if answers else {"content": outputs} if isinstance(outputs, str) else None
    return Findings("llm", agent, inputs, outputs, _call(attributes, prompt, answer) if prompt else None)


def _call(attributes: Mapping[str, Any], prompt: tuple[Any, ...], answer: Mapping[str, Any] | None) -> Call:
    settings = unpacked(attributes.get("llm.invocation_parameters"))
    return Call(
        messages=prompt,
        completion=None if answer is None else answer["content"],
        tool_calls=tuple(answer.get("tool_calls", ())) if answer else (),
        reasoning=answer.get("reasoning") if answer else None,
        tools=any(key.startswith("llm.tools.") for key in attributes),
        finish_reason=text(attributes.get("llm.finish_reason")),
        model=text(attributes.get("llm.model_name")),
        **sampling(settings if isinstance(settings, Mapping) else {}),
        **logged_tokens(attributes),
    )


def _messages(attributes: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], ...] | None:
    """Messages from flat attributes `PREFIX.0.message.role`, …; from a list of them where they are nested."""
    if isinstance(nested := unpacked(attributes.get(prefix)), list):
        return messages_of(nested)
    places: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        if key.startswith(f"{prefix}."):
            place, _, rest = key[len(prefix) + 1 :].partition(".")
            if place.isdecimal():
                places.setdefault(int(place), {})[rest] = value
    found = [_message(places[place]) for place in sorted(places)]
    return tuple(item for item in found if item is not None) or None


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
    extra: dict[str, Any] = {"tool_calls": [calls[place] for place in sorted(calls)]}
    for name in ("tool_call_id", "name"):
        extra[name] = parts.get(f"message.{name}")
    return message(parts.get("message.role"), content, extra)
