"""Langfuse's own SDKs, which export spans of OpenTelemetry: `langfuse.observation.*` and `langfuse.trace.*`.

https://langfuse.com/integrations/native/opentelemetry
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.ingest.conventions import NOTHING, Findings
from stages.ingest.langfuse_calls import KINDS, agent_of, call_of_generation
from stages.ingest.values import unpacked

ADDED = "langfuse.trace.metadata."
"""What the program's author added to the trace stands under such names."""
_OBSERVATION = "langfuse.observation."
_METADATA = f"{_OBSERVATION}metadata."
_WHOLE = {"inputs": "langfuse.trace.input", "outputs": "langfuse.trace.output"}


def may_know(names: Sequence[str]) -> bool:
    """Whether `findings` may know a span whose attributes have these names."""
    return any(name.startswith(_OBSERVATION) for name in names)


def findings(name: str, attributes: Mapping[str, Any], events: Sequence[Any], scope: str) -> Findings:
    """What `langfuse.observation.*` attributes say."""
    said = {key.removeprefix(_OBSERVATION): value for key, value in attributes.items() if key.startswith(_OBSERVATION)}
    if not said:
        return NOTHING
    metadata = {
        **{key: value for key, value in attributes.items() if not key.startswith("langfuse.")},
        **{
            key.removeprefix(_METADATA): unpacked(value)
            for key, value in attributes.items()
            if key.startswith(_METADATA)
        },
    }
    kind = KINDS.get(str(said.get("type") or "span").upper(), "other")
    held = {
        "input": said.get("input"),
        "output": said.get("output"),
        "model": said.get("model.name"),
        "modelParameters": said.get("model.parameters"),
    }
    return Findings(
        kind,
        agent_of(name, kind, metadata, own_sdk=True),
        unpacked(held["input"]),
        unpacked(held["output"]),
        call_of_generation(held, metadata) if kind == "llm" else None,
        str(said.get("status_message") or "failed") if said.get("level") == "ERROR" else None,
    )


def of_the_trace(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Input and output of the whole trace where a span says them, as fields of `Span`."""
    return {field: unpacked(attributes[name]) for field, name in _WHOLE.items() if attributes.get(name) is not None}
