"""`dspy.LM.history`: one entry for each call, with neither trace nor parent nor module.

Every entry is a trace of its own, whose input is the prompt: which calls belong to one run of the program is not
logged, and times and texts do not tell it surely, least of all where programs run in parallel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.answers import answer_of
from stages.ingest.conventions import sampling
from stages.ingest.normal import Item, Refused, Span
from stages.ingest.requests import call_of, request_of
from stages.ingest.shape import Shape
from stages.ingest.trajectory import trace_id
from stages.ingest.values import identity, nanoseconds, text, unpacked

NAME = "dspy_history"


def recognises(value: Any, shape: Shape) -> bool:
    """An entry with a prompt, outputs and keyword arguments."""
    return isinstance(value, Mapping) and "outputs" in value and "kwargs" in value and "messages" in value


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """The one call of an entry."""
    kwargs = unpacked(value.get("kwargs"))
    kwargs = kwargs if isinstance(kwargs, Mapping) else {}
    request = request_of({"prompt": value.get("prompt"), "messages": value.get("messages"), **kwargs})
    if request.messages is None:
        yield Refused("broken", "the entry has neither `messages` nor a `prompt`", where)
        return
    outputs = unpacked(value.get("outputs"))
    answer = answer_of(outputs)
    response = unpacked(value.get("response"))  # a dictionary, or how Python prints the object
    said = answer_of(response) if isinstance(response, Mapping) else None
    call = call_of(
        request,
        answer,
        **sampling(kwargs),
        **(said.tokens if said and not (answer and answer.tokens) else {}),
        finish_reason=(answer.finish_reason if answer else None) or (said.finish_reason if said else None),
        model=text(value.get("response_model")) or text(value.get("model")),
        cached=_cached(value, response),
    )
    yield Span(
        identity(value.get("uuid")) or trace_id(NAME, value.get("timestamp"), value.get("messages"), outputs),
        "call",
        kind="llm",
        name=text(value.get("model")) or "",
        end=nanoseconds(value.get("timestamp")),
        inputs={"messages": value.get("messages")} if value.get("messages") else {"prompt": value.get("prompt")},
        outputs=answer.message["content"] if answer and answer.message else None,
        call=call,
        where=where,
    )


def _cached(value: Mapping[str, Any], response: Any) -> bool | None:
    """Whether DSPy's cache answered: it says so in the response, and then logs no usage."""
    hit = response.get("cache_hit") if isinstance(response, Mapping) else None
    if isinstance(hit, bool):
        return hit
    usage = value.get("usage")
    return not usage if isinstance(usage, Mapping) else None
