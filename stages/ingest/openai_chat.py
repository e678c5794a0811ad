"""Chats one a line, as OpenAI's API and fine-tuning files have them: `{messages}`, with an id and a score if at hand.

Also `{prompt, completion}`, a chat with its response beside it, pairs `{request, response}`, responses of the Responses
API that repeat their input, and `{conversations}` with `from` and `value`. The last
message of the assistant is the completion, and what stands before it is the prompt; of the earlier ones a line does
not say whether the same model made them. A completion that is a conversation is all the model's: each of its answers
is a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from stages.ingest.chat_forms import asked_and_answered, turns_of
from stages.ingest.logged import tokens_of
from stages.ingest.normal import Item, Refused, Score, Span
from stages.ingest.requests import Request, call_of
from stages.ingest.scores import SCORES, named_scores
from stages.ingest.shape import Shape
from stages.ingest.trajectory import ROOT, calls_of, trace_id
from stages.ingest.values import identity, judged, nanoseconds, text, unpacked

NAME = "openai_chat"
_TIMES = ("created", "created_at", "timestamp", "start_time", "startTime")
_IDS = ("trace_id", "id", "request_id", "conversation_id", "session_id")
_OTHERS = (
    "mmgrpo_capture",
    "kwargs",
    "traj",
    "run_type",
    "steps",
    "rollout_id",
    "samples",
    "eval",
    "observations",
    "attributes",
)
"""Keys of formats that have messages as well."""


def recognises(value: Any, shape: Shape) -> bool:
    """A chat, a prompt with its completion, or a request with its response."""
    if (
        not isinstance(value, Mapping)
        or any(name in value for name in _OTHERS)
        or ("messages" in value and ("info" in value or _mixed(value)))
    ):
        return False
    if isinstance(held := unpacked(value.get("messages")), list):
        return not held or (isinstance(held[0], Mapping) and "role" in held[0])
    if isinstance(held := unpacked(value.get("conversations")), list) and held:
        return isinstance(held[0], Mapping) and "from" in held[0] and "value" in held[0]
    if value.get("object") == "response":
        return "input" in value and isinstance(value.get("output"), list)
    if "completion" in value:
        return isinstance(value.get("prompt"), (str, list)) and isinstance(value["completion"], (str, list))
    request, response = unpacked(value.get("request")), unpacked(value.get("response"))
    asked = isinstance(request, Mapping) and any(name in request for name in ("messages", "prompt", "input"))
    return asked and isinstance(response, Mapping)


def _mixed(value: Mapping[str, Any]) -> bool:
    return ("epoch" in value and "target" in value) or "trajectory_format" in value


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """The one call of a line, as a trace, and its scores."""
    request, answer = asked_and_answered(value)
    if request.messages is None:
        yield Refused("broken", "the line holds no chat messages", where)
        return
    logged = next((found for name in _IDS if (found := identity(value.get(name)))), None)
    said = answer.message if answer else None
    # Rows that name their example are rollouts: two that say the same are two.
    trace = logged or trace_id(NAME, *([value] if "example_id" in value else [list(request.messages), said]))
    call = call_of(request, answer, **tokens_of(value))
    metadata = unpacked(value.get("metadata"))
    span = Span(
        trace,
        "call",
        kind="llm",
        name=text(value.get("name")) or "",
        start=nanoseconds(next((value[name] for name in _TIMES if value.get(name)), None)),
        error=str(value["error"]) if value.get("error") else None,
        module=text(value.get("mmgrpo.module")) or text(value.get("module")),
        inputs={"messages": list(request.messages)},
        outputs=said["content"] if said else None,
        call=call,
        example=None if value.get("example_id") is None else str(value["example_id"]),
        user=text(value.get("user")),
        metadata=dict(metadata) if isinstance(metadata, Mapping) else {},
        where=where,
    )
    turns = turns_of(value)
    yield from [span] if turns is None else _conversation(span, request, turns)
    for name in SCORES:
        if name in value:
            yield Score(trace, name, judged(value[name]), where=where)
    yield from named_scores(value, trace, where)


def _conversation(span: Span, request: Request, turns: tuple[dict[str, Any], ...]) -> Iterator[Span]:
    """A root, and below it a call for each answer of a conversation that follows a prompt."""
    prompt = request.messages or ()
    yield replace(span, span=ROOT, kind="agent", call=None)
    settings: dict[str, Any] = {
        "model": request.model,
        **request.settings,
        **({"tools": True} if request.tools else {}),
    }
    for made in calls_of(span.trace, (*prompt, *turns), where=span.where, **settings):
        if made.order > len(prompt):
            yield replace(made, module=span.module)
