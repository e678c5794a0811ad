"""OpenTelemetry's GenAI conventions: `gen_ai.*`; and those of OpenLLMetry and Logfire, which build on them.

https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from stages.ingest.answers import Answer
from stages.ingest.conventions import SETTINGS, Findings, Setting, logged_tokens, sampling
from stages.ingest.genai_messages import RUNS, Prompt, asked_and_said, may_tell
from stages.ingest.normal import Call, Kind
from stages.ingest.requests import Request, call_of
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
_OFFERED = ("gen_ai.agent.tools", "gen_ai.tool.definitions")
_TOOLS = ("gen_ai.tool.definitions", "gen_ai.request.tools", "llm.request.functions.0.name")
_INPUTS = ("traceloop.entity.input", "gen_ai.tool.call.arguments", "tool_arguments")
_OUTPUTS = ("traceloop.entity.output", "gen_ai.tool.call.result", "tool_response", "final_result")


def findings(name: str, attributes: Mapping[str, Any], events: Sequence[Any], scope: str) -> Findings:
    """What `gen_ai.*` attributes and events say."""
    names = _names(tuple(attributes))
    kind = _kind(attributes, names)
    prompt, answer = asked_and_said(attributes, events) if names.told or events else (None, None)
    if kind is None and any(name in attributes for name in RUNS):
        kind = "agent"
    said = [prompt, answer, attributes.get("gen_ai.request.model")]
    if kind is None and (prompt or answer) and sum(map(bool, said)) > 1:
        kind = "llm"  # older instrumentations name no operation
    agent = _first(attributes, names.agents)
    if agent is None and kind == "agent":
        agent = text(attributes.get("traceloop.entity.name"))
    inputs, outputs = _io(attributes, names, prompt, answer)
    if kind != "llm" or not (prompt or attributes.get("gen_ai.request.model")):
        offers = kind == "agent" and any(unpacked(attributes.get(name)) for name in _OFFERED)
        return Findings(kind=kind, agent=agent, inputs=inputs, outputs=outputs, offers=offers)
    # Without a prompt: one may be among the log records of the span, which say nothing of settings.
    return Findings("llm", agent, inputs, outputs, _call(attributes, names, prompt or (), answer))


class _Names(NamedTuple):
    """Which of the attributes that say something a span has; spans of one program have few sets of names."""

    told: bool
    """Whether one may hold a prompt or an answer."""
    kinds: tuple[tuple[Mapping[str, Kind], str], ...]
    agents: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tools: tuple[str, ...]
    settings: tuple[Setting, ...]
    """Sampling settings, by the names of the attributes that hold them."""


@lru_cache(4096)
def _names(names: tuple[str, ...]) -> _Names:
    def there(*wanted: str) -> tuple[str, ...]:
        return tuple(name for name in wanted if name in names)

    short = {name.removeprefix("gen_ai.request."): name for name in names}
    settings = [
        (field, reader, tuple(short[name] for name in said if name in short)) for field, reader, said in SETTINGS
    ]
    return _Names(
        may_tell(names),
        tuple((kinds, name) for kinds, name in _KINDS_BY_NAME if name in names),
        there("gen_ai.agent.name", "agent_name"),
        there(*_INPUTS),
        there(*_OUTPUTS),
        there(*_TOOLS),
        tuple(setting for setting in settings if setting[2]),
    )


def _first(attributes: Mapping[str, Any], names: Sequence[str]) -> str | None:
    for name in names:
        if found := text(attributes[name]):
            return found
    return None


def _kind(attributes: Mapping[str, Any], names: _Names) -> Kind | None:
    for kinds, name in names.kinds:
        if found := kinds.get(str(attributes[name])):
            return found
    return None


def _call(attributes: Mapping[str, Any], names: _Names, prompt: Prompt, answer: Answer | None) -> Call:
    reasons = unpacked(attributes.get("gen_ai.response.finish_reasons"))
    offered = unpacked(attributes.get("model_request_parameters"))  # Logfire's
    offered = offered.get("function_tools") if isinstance(offered, dict) else None
    tools = bool(offered) or any(unpacked(attributes[name]) for name in names.tools)
    return call_of(
        Request(prompt, tools, settings=sampling(attributes, names.settings)),
        answer,
        finish_reason=text(reasons[0]) if isinstance(reasons, list) and reasons else None,
        model=text(attributes.get("gen_ai.response.model")) or text(attributes.get("gen_ai.request.model")),
        cached=_cached(attributes.get("litellm.cache_hit")),
        **logged_tokens(attributes),
    )


def _cached(hit: Any) -> bool | None:
    """Whether LiteLLM's cache answered, where it says."""
    return {"true": True, "false": False}.get(str(hit).lower())


def _io(attributes: Mapping[str, Any], names: _Names, prompt: Prompt | None, answer: Answer | None) -> tuple[Any, Any]:
    """Input and output of a step; of one that logs messages, what the user said last, and what was answered."""
    inputs = _held(attributes, names.inputs) if names.inputs else None
    outputs = _held(attributes, names.outputs) if names.outputs else None
    if inputs is None and prompt:
        inputs = next((item["content"] for item in reversed(prompt) if item["role"] == "user"), None) or None
    if outputs is None and answer and answer.message and not answer.message.get("other_content"):
        outputs = answer.message["content"]
    return inputs, outputs


def _held(attributes: Mapping[str, Any], names: Sequence[str]) -> Any:
    return unpacked(next((attributes[name] for name in names if attributes[name]), None))
