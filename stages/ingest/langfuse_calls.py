"""What Langfuse's observations are, and the LM call of a generation, which each framework logs in its own way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.ingest.answers import answer_of
from stages.ingest.conventions import node_of
from stages.ingest.normal import Call, Kind
from stages.ingest.requests import call_of, request_of
from stages.ingest.values import number, text, unpacked

KINDS: Mapping[str, Kind] = {
    "GENERATION": "llm",
    "SPAN": "chain",
    "CHAIN": "chain",
    "AGENT": "agent",
    "TOOL": "tool",
    "RETRIEVER": "retriever",
    "EVENT": "other",
    "EMBEDDING": "other",
    "EVALUATOR": "other",
    "GUARDRAIL": "other",
}
"""Of steps, by the types of observations."""
_MODELS = ("gen_ai.response.model", "llm.model_name", "gen_ai.request.model")


def attributes_of(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The OpenTelemetry attributes that Langfuse keeps in an observation's metadata, and the metadata's own fields."""
    found = unpacked(metadata.get("attributes"))
    return {**metadata, **found} if isinstance(found, Mapping) else metadata


def agent_of(name: str, kind: Kind, metadata: Mapping[str, Any], *, own_sdk: bool) -> str | None:
    """The node of a graph, the agent by its attributes, or the name given to an agent in Langfuse's own SDK."""
    attributes = attributes_of(metadata)
    given = node_of(metadata) or text(attributes.get("gen_ai.agent.name"))
    return given or text(attributes.get("graph.node.id")) or (text(name) if kind == "agent" and own_sdk else None)


def call_of_generation(held: Mapping[str, Any], metadata: Mapping[str, Any]) -> Call:
    """The call of an observation of type GENERATION."""
    attributes = attributes_of(metadata)
    parameters = unpacked(held.get("modelParameters") or held.get("model_parameters"))
    parameters = parameters if isinstance(parameters, Mapping) else {}
    asked, offered = _without_tools(unpacked(held.get("input")))
    output = unpacked(held.get("output"))
    given = _given(output) or _given(metadata)
    if isinstance(asked, list):
        asked = {"messages": asked}
    elif isinstance(asked, str):
        asked = {"prompt": asked}
    request = request_of({**given, **parameters, **(asked if isinstance(asked, Mapping) else {})})
    beside = [held.get(name) for name in ("toolDefinitions", "tool_definitions")]
    beside += [value for name, value in attributes.items() if name.startswith(("llm.tools", "gen_ai.tool.definitions"))]
    tools = any(beside) or (isinstance(output, Mapping) and bool(output.get("tools")))
    answer = answer_of(output)
    reasons = unpacked(attributes.get("gen_ai.response.finish_reasons"))
    logged = reasons[0] if isinstance(reasons, list) and reasons else None
    return call_of(
        request,
        answer,
        tools=tools or offered or request.tools,
        model=_model(held, attributes),
        finish_reason=(answer.finish_reason if answer else None) or text(logged),
        temperature=request.settings.get("temperature", number(attributes.get("ls_temperature"))),
    )


def _given(response: Any) -> dict[str, Any]:
    """What a response repeats of its request, whose input lacks it.

    Langfuse's own clients put a response's fields beside its text, into the metadata.
    """
    known = isinstance(response, Mapping) and "instructions" in response and "status" in response
    return {name: response.get(name) for name in ("instructions", "previous_response_id")} if known else {}


def _without_tools(asked: Any) -> tuple[Any, bool]:
    """The input without the tools that Langfuse's LangChain handler appends to its messages, and whether there were."""
    held = asked.get("messages") if isinstance(asked, Mapping) else asked
    if not isinstance(held, list):
        return asked, False
    kept = [item for item in held if not _is_tool(item)]
    found = {**asked, "messages": kept} if isinstance(asked, Mapping) else kept
    return found, len(kept) < len(held)


def _is_tool(item: Any) -> bool:
    content = item.get("content") if isinstance(item, Mapping) and item.get("role") == "tool" else None
    return isinstance(content, Mapping) and content.get("type") == "function" and "function" in content


def _model(held: Mapping[str, Any], attributes: Mapping[str, Any]) -> str | None:
    own = (held.get(name) for name in ("model", "provided_model_name", "providedModelName"))
    logged = (attributes.get(name) for name in (*_MODELS, "ls_model_name"))
    return next((found for value in (*own, *logged) if (found := text(value))), None)
