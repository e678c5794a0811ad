"""The Vercel AI SDK: `ai.*`. A generation has an outer span, and one `do…` span for each call of the model.

https://ai-sdk.dev/docs/ai-sdk-core/telemetry
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.ingest.conventions import NOTHING, Findings, logged_tokens, sampling
from stages.ingest.messages import messages_of
from stages.ingest.normal import Call
from stages.ingest.values import text, unpacked


def may_know(names: Sequence[str]) -> bool:
    """Whether `findings` may know a span whose attributes have these names."""
    return "ai.operationId" in names


def findings(name: str, attributes: Mapping[str, Any], events: Sequence[Any], scope: str) -> Findings:
    """What `ai.*` attributes say."""
    operation = text(attributes.get("ai.operationId"))
    if operation is None:
        return NOTHING
    agent = text(attributes.get("ai.telemetry.functionId"))
    answer = _first(attributes, "ai.response.text", "ai.response.object", "ai.result.text", "ai.result.object")
    if operation == "ai.toolCall":
        arguments = _first(attributes, "ai.toolCall.args", "ai.toolCall.input")
        result = _first(attributes, "ai.toolCall.result", "ai.toolCall.output")
        return Findings("tool", agent, unpacked(arguments), unpacked(result))
    if ".do" not in operation:
        return Findings("chain", agent, unpacked(attributes.get("ai.prompt")), answer)
    prompt = messages_of(attributes.get("ai.prompt.messages"))
    if prompt is None or operation.endswith("doEmbed"):
        return Findings("other", agent)
    calls = unpacked(_first(attributes, "ai.response.toolCalls", "ai.result.toolCalls"))
    settings = {key.removeprefix("gen_ai.request."): value for key, value in attributes.items()}
    settings |= {key.removeprefix("ai.settings."): value for key, value in attributes.items()}
    call = Call(
        messages=prompt,
        completion=answer if isinstance(answer, str) else None,
        tool_calls=tuple(calls) if isinstance(calls, list) else (),
        reasoning=text(attributes.get("ai.response.reasoning")),
        tools=bool(attributes.get("ai.prompt.tools")),
        finish_reason=text(_first(attributes, "ai.response.finishReason", "ai.finishReason")),
        model=text(attributes.get("ai.response.model")) or text(attributes.get("ai.model.id")),
        **sampling(settings),
        **logged_tokens(attributes),
    )
    return Findings("llm", agent, call=call)


def _first(attributes: Mapping[str, Any], *names: str) -> Any:
    """The newest spelling that is there; `ai.result.*` is that of SDKs before 4."""
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)
