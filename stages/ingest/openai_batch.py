"""OpenAI's batch API: lines of requests `{custom_id, url, body}`, and lines of responses `{custom_id, response}`.

The two are files of their own. Each line is the same span, by its `custom_id`; the one has the prompt and the other
the completion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.answers import answer_of
from stages.ingest.normal import Item, Refused, Span
from stages.ingest.requests import Request, call_of, request_of
from stages.ingest.shape import Shape
from stages.ingest.values import identity, nanoseconds

NAME = "openai_batch"


def recognises(value: Any, shape: Shape) -> bool:
    """A line of either file."""
    if not isinstance(value, Mapping) or "custom_id" not in value:
        return False
    return isinstance(value.get("body"), Mapping) or "response" in value


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """The request or the response of one call."""
    trace = identity(value["custom_id"])
    if trace is None:
        yield Refused("no_trace_id", "the line's `custom_id` is empty", where)
        return
    if isinstance(asked := value.get("body"), Mapping):
        request = request_of(asked)
        inputs = {"messages": list(request.messages)} if request.messages else None
        yield Span(trace, "call", kind="llm", inputs=inputs, call=call_of(request, None), where=where)
        return
    response = value.get("response")
    response = response if isinstance(response, Mapping) else {}
    body = response.get("body")
    answer = answer_of(body) if isinstance(body, Mapping) and not body.get("error") else None
    said = answer.message if answer else None
    yield Span(
        trace,
        "call",
        kind="llm",
        start=nanoseconds(body.get("created") or body.get("created_at")) if isinstance(body, Mapping) else None,
        error=_error(value.get("error"), response.get("status_code"), body),
        outputs=said["content"] if said else None,
        call=call_of(Request(None), answer),
        where=where,
    )


def _error(error: Any, status: Any, body: Any) -> str | None:
    held = error or (body.get("error") if isinstance(body, Mapping) else None)
    if isinstance(held, Mapping):
        return str(held.get("message") or held.get("code") or "failed")
    return str(held) if held else f"status {status}" if status not in (None, 200) else None
