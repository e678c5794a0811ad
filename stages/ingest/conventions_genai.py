"""OpenTelemetry's GenAI conventions: `gen_ai.*`; and those of OpenLLMetry and Logfire, which build on them.

https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from stages.ingest.answers import Answer
from stages.ingest.conventions import SETTINGS, Findings, logged_tokens, sampling
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
_KINDS_BY_NAME = (
    (_KINDS, "gen_ai.operation.name"),
    (_TRACELOOP, "traceloop.span.kind"),
    (_REQUESTS, "llm.request.type"),
)
_TOOLS = ("gen_ai.tool.definitions", "gen_ai.request.tools", "llm.request.functions.0.name")
_INPUTS = ("traceloop.entity.input", "gen_ai.tool.call.arguments", "tool_arguments")
_OUTPUTS = ("traceloop.entity.output", "gen_ai.tool.call.result", "tool_response", "final_result")


def findings(name: str, attributes: Mapping[str, Any], events: Sequence[Any], scope: str) -> Findings:
    """What `gen_ai.*` attributes and events say."""
    names = _names(tuple(attributes))
    kind = _kind(attributes, names)
    prompt, answer = asked_and_said(attributes, events)
    if kind is None and prompt and (answer or attributes.get("gen_ai.request.model")):
        kind = "llm"  # older instrumentations name no operation
    agent = next((found for name in names.agents if (found := text(attributes[name]))), None)
    if agent is None and kind == "agent":
        agent = text(attributes.get("traceloop.entity.name"))
    inputs, outputs = _io(attributes, names, prompt, answer)
    if kind != "llm" or not (prompt or attributes.get("gen_ai.request.model")):
        return Findings(kind=kind, agent=agent, inputs=inputs, outputs=outputs)
    # Without a prompt: one may be among the log records of the span, which say nothing of settings.
    return Findings("llm", agent, inputs, outputs, _call(attributes, names, prompt or (), answer))


class _Names(NamedTuple):
    """Which of the attributes that say something a span has; spans of one program have few sets of names."""

    kinds: tuple[tuple[Mapping[str, Kind], str], ...]
    agents: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tools: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    """(name in a request, name of the attribute) of each sampling setting."""


@lru_cache(4096)
def _names(names: tuple[str, ...]) -> _Names:
    def there(*wanted: str) -> tuple[str, ...]:
        return tuple(name for name in wanted if name in names)

    short = {name.removeprefix("gen_ai.request."): name for name in names}
    return _Names(
        tuple((kinds, name) for kinds, name in _KINDS_BY_NAME if name in names),
        there("gen_ai.agent.name", "agent_name"),
        there(*_INPUTS),
        there(*_OUTPUTS),
        there(*_TOOLS),
        tuple((bare, name) for bare, name in short.items() if bare in SETTINGS),
    )


def _kind(attributes: Mapping[str, Any], names: _Names) -> Kind | None:
    return next((found for kinds, name in names.kinds if (found := kinds.get(str(attributes[name])))), None)


def _call(attributes: Mapping[str, Any], names: _Names, prompt: Prompt, answer: Answer | None) -> Call:
    reasons = unpacked(attributes.get("gen_ai.response.finish_reasons"))
    offered = unpacked(attributes.get("model_request_parameters"))  # Logfire's
    offered = offered.get("function_tools") if isinstance(offered, dict) else None
    settings = known(sampling({bare: attributes[name] for bare, name in names.settings})) if names.settings else {}
    return call_of(
        Request(prompt, any(attributes[name] for name in names.tools) or bool(offered), settings=settings),
        answer,
        finish_reason=text(reasons[0]) if isinstance(reasons, list) and reasons else None,
        model=text(attributes.get("gen_ai.response.model")) or text(attributes.get("gen_ai.request.model")),
        **logged_tokens(attributes),
    )


def _io(attributes: Mapping[str, Any], names: _Names, prompt: Prompt | None, answer: Answer | None) -> tuple[Any, Any]:
    """Input and output of a step; of one that logs messages, what the user said last, and what was answered."""
    inputs = unpacked(next((attributes[name] for name in names.inputs if attributes[name]), None))
    outputs = unpacked(next((attributes[name] for name in names.outputs if attributes[name]), None))
    said = [item["content"] for item in prompt or () if item["role"] == "user"]
    inputs = inputs if inputs is not None else said[-1] if said else None
    spoken = answer.message["content"] if answer and answer.message else None
    return inputs, outputs if outputs is not None else spoken
