"""OpenTelemetry's GenAI conventions: `gen_ai.*`, with messages in attributes, in events, or one attribute each.

https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.ingest.conventions import Findings, logged_tokens, sampling
from stages.ingest.messages import message, messages_of
from stages.ingest.normal import Call, Kind
from stages.ingest.values import text, unpacked

_KINDS: Mapping[str, Kind] = {
    "chat": "llm",
    "text_completion": "llm",
    "generate_content": "llm",
    "invoke_agent": "agent",
    "create_agent": "agent",
    "invoke_workflow": "chain",
    "execute_tool": "tool",
    "retrieval": "retriever",
    "embeddings": "other",
}
_ROLES = {"gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.assistant.message": "assistant"}
_ROLES["gen_ai.tool.message"] = "tool"
_TRACELOOP: Mapping[str, Kind] = {"workflow": "chain", "task": "chain", "agent": "agent", "tool": "tool"}


def findings(name: str, attributes: Mapping[str, Any], events: Sequence[Any], scope: str) -> Findings:
    """What `gen_ai.*` attributes and events say."""
    operation = text(attributes.get("gen_ai.operation.name"))
    kind = _KINDS.get(operation or "") or _TRACELOOP.get(str(attributes.get("traceloop.span.kind")))
    prompt, answer = _messages(attributes, events)
    if kind is None and prompt and (answer or attributes.get("gen_ai.request.model")):
        kind = "llm"  # older instrumentations name no operation
    agent = text(attributes.get("gen_ai.agent.name"))
    inputs, outputs = _io(attributes, prompt, answer)
    if kind != "llm" or not prompt:
        return Findings(kind=kind, agent=agent, inputs=inputs, outputs=outputs)
    return Findings("llm", agent, inputs, outputs, _call(attributes, prompt, answer))


def _call(attributes: Mapping[str, Any], prompt: tuple[Any, ...], answer: Mapping[str, Any] | None) -> Call:
    reasons = unpacked(attributes.get("gen_ai.response.finish_reasons"))
    short = {key.removeprefix("gen_ai.request."): value for key, value in attributes.items()}
    return Call(
        messages=prompt,
        completion=None if answer is None else answer["content"],
        tool_calls=tuple(answer.get("tool_calls", ())) if answer else (),
        reasoning=answer.get("reasoning") if answer else None,
        tools=bool(attributes.get("gen_ai.tool.definitions") or attributes.get("llm.request.functions.0.name")),
        finish_reason=text(reasons[0]) if isinstance(reasons, list) and reasons else None,
        model=text(attributes.get("gen_ai.response.model")) or text(attributes.get("gen_ai.request.model")),
        **sampling(short),
        **logged_tokens(attributes),
    )


def _messages(
    attributes: Mapping[str, Any], events: Sequence[Any]
) -> tuple[tuple[dict[str, Any], ...] | None, dict[str, Any] | None]:
    """Prompt and completion, from the newest of the forms that is there."""
    held = dict(attributes)
    for event in events:
        if event.name == "gen_ai.client.inference.operation.details":
            held |= event.attributes
    system = messages_of(held.get("gen_ai.system_instructions"))
    instructions = message("system", unpacked(held.get("gen_ai.system_instructions"))) if system is None else None
    prompt = messages_of(held.get("gen_ai.input.messages"))
    answer = messages_of(held.get("gen_ai.output.messages"))
    if prompt is None:
        prompt, answer = _of_events(events)
    if prompt is None:
        prompt, answer = _one_by_one(held, "gen_ai.prompt"), _one_by_one(held, "gen_ai.completion")
    if prompt and instructions and instructions["content"]:
        prompt = (instructions, *prompt)
    return prompt, answer[-1] if answer else None


def _of_events(events: Sequence[Any]) -> tuple[tuple[Any, ...] | None, tuple[Any, ...] | None]:
    prompt, answer = [], []
    for event in events:
        if event.name in _ROLES:
            found = message(_ROLES[event.name], unpacked(event.attributes.get("content")), event.attributes)
            prompt += [found] if found else []
        elif event.name == "gen_ai.choice":
            inner = unpacked(event.attributes.get("message"))
            inner = inner if isinstance(inner, Mapping) else {"content": inner or event.attributes.get("content")}
            found = message("assistant", inner.get("content"), inner)
            answer += [found] if found else []
    return tuple(prompt) or None, tuple(answer) or None


def _one_by_one(attributes: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], ...] | None:
    """Messages as attributes `PREFIX.0.role`, `PREFIX.0.content` and so on."""
    found: list[dict[str, Any]] = []
    while f"{prefix}.{len(found)}.role" in attributes or f"{prefix}.{len(found)}.content" in attributes:
        place = f"{prefix}.{len(found)}."
        role = attributes.get(f"{place}role") or ("assistant" if prefix.endswith("completion") else "user")
        extra = {"tool_calls": _calls(attributes, f"{place}tool_calls")}
        made = message(role, unpacked(attributes.get(f"{place}content")), extra)
        if made is None:
            return None
        found.append(made)
    return tuple(found) or None


def _calls(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while name := attributes.get(f"{prefix}.{len(found)}.name"):
        found.append({"name": name, "arguments": attributes.get(f"{prefix}.{len(found)}.arguments")})
    return found


def _io(
    attributes: Mapping[str, Any], prompt: tuple[Any, ...] | None, answer: Mapping[str, Any] | None
) -> tuple[Any, Any]:
    """Input and output of a step that is no LM call."""
    inputs = unpacked(attributes.get("traceloop.entity.input") or attributes.get("gen_ai.tool.call.arguments"))
    outputs = unpacked(
        attributes.get("traceloop.entity.output")
        or attributes.get("gen_ai.tool.call.result")
        or attributes.get("final_result")
    )
    said = [item["content"] for item in prompt or () if item["role"] == "user"]
    inputs = inputs if inputs is not None else said[-1] if said else None
    return inputs, outputs if outputs is not None else answer["content"] if answer else None
