"""OpenTelemetry's GenAI conventions: `gen_ai.*`; and those of OpenLLMetry and Logfire, which build on them.

https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.ingest.answers import Answer
from stages.ingest.conventions import Findings, logged_tokens, sampling
from stages.ingest.genai_messages import Prompt, asked_and_said
from stages.ingest.normal import Call, Kind
from stages.ingest.requests import Request, call_of, known
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
_TRACELOOP: Mapping[str, Kind] = {"workflow": "chain", "task": "chain", "agent": "agent", "tool": "tool"}
_REQUESTS: Mapping[str, Kind] = {"chat": "llm", "completion": "llm", "embedding": "other", "rerank": "other"}
_TOOLS = ("gen_ai.tool.definitions", "gen_ai.request.tools", "llm.request.functions.0.name")
_INPUTS = ("traceloop.entity.input", "gen_ai.tool.call.arguments", "tool_arguments")
_OUTPUTS = ("traceloop.entity.output", "gen_ai.tool.call.result", "tool_response", "final_result")


def findings(name: str, attributes: Mapping[str, Any], events: Sequence[Any], scope: str) -> Findings:
    """What `gen_ai.*` attributes and events say."""
    kind = _kind(attributes)
    prompt, answer = asked_and_said(attributes, events)
    if kind is None and prompt and (answer or attributes.get("gen_ai.request.model")):
        kind = "llm"  # older instrumentations name no operation
    agent = text(attributes.get("gen_ai.agent.name")) or text(attributes.get("agent_name"))
    if agent is None and kind == "agent":
        agent = text(attributes.get("traceloop.entity.name"))
    inputs, outputs = _io(attributes, prompt, answer)
    if kind != "llm" or not (prompt or attributes.get("gen_ai.request.model")):
        return Findings(kind=kind, agent=agent, inputs=inputs, outputs=outputs)
    # Without a prompt: one may be among the log records of the span, which say nothing of settings.
    return Findings("llm", agent, inputs, outputs, _call(attributes, prompt or (), answer))


def _kind(attributes: Mapping[str, Any]) -> Kind | None:
    named = (
        (_KINDS, "gen_ai.operation.name"),
        (_TRACELOOP, "traceloop.span.kind"),
        (_REQUESTS, "llm.request.type"),
    )
    return next((found for kinds, name in named if (found := kinds.get(str(attributes.get(name))))), None)


def _call(attributes: Mapping[str, Any], prompt: Prompt, answer: Answer | None) -> Call:
    reasons = unpacked(attributes.get("gen_ai.response.finish_reasons"))
    offered = unpacked(attributes.get("model_request_parameters"))  # Logfire's
    offered = offered.get("function_tools") if isinstance(offered, dict) else None
    short = {key.removeprefix("gen_ai.request."): value for key, value in attributes.items()}
    return call_of(
        Request(prompt, any(attributes.get(name) for name in _TOOLS) or bool(offered), settings=known(sampling(short))),
        answer,
        finish_reason=text(reasons[0]) if isinstance(reasons, list) and reasons else None,
        model=text(attributes.get("gen_ai.response.model")) or text(attributes.get("gen_ai.request.model")),
        **logged_tokens(attributes),
    )


def _io(attributes: Mapping[str, Any], prompt: Prompt | None, answer: Answer | None) -> tuple[Any, Any]:
    """Input and output of a step; of one that logs messages, what the user said last, and what was answered."""
    inputs = unpacked(next((attributes[name] for name in _INPUTS if attributes.get(name)), None))
    outputs = unpacked(next((attributes[name] for name in _OUTPUTS if attributes.get(name)), None))
    said = [item["content"] for item in prompt or () if item["role"] == "user"]
    inputs = inputs if inputs is not None else said[-1] if said else None
    spoken = answer.message["content"] if answer and answer.message else None
    return inputs, outputs if outputs is not None else spoken
