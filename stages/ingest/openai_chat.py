"""Chats one a line, as OpenAI's API and fine-tuning files have them: `{messages}`, with an id and a score if at hand.

Also `{prompt, completion}`, a chat with the `choices` of its response, and pairs `{request, response}`. The last
message of the assistant is the completion, and what stands before it is the prompt; of the earlier ones a line does
not say whether the same model made them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.answers import Answer, answer_of
from stages.ingest.logged import tokens_of
from stages.ingest.messages import messages_of
from stages.ingest.normal import Item, Refused, Score, Span
from stages.ingest.read import Shape
from stages.ingest.requests import Request, call_of, known, request_of
from stages.ingest.scores import SCORES, named_scores
from stages.ingest.trajectory import trace_id
from stages.ingest.values import identity, nanoseconds, number, text, unpacked

NAME = "openai_chat"
_IDS = ("trace_id", "id", "request_id", "conversation_id", "session_id")
_OTHERS = (
    "mmgrpo_capture",
    "kwargs",
    "traj",
    "info",
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
        or ("messages" in value and _mixed(value))
    ):
        return False
    if isinstance(held := unpacked(value.get("messages")), list):
        return not held or (isinstance(held[0], Mapping) and "role" in held[0])
    if "completion" in value:
        return isinstance(value.get("prompt"), (str, list)) and isinstance(value["completion"], (str, list))
    request, response = unpacked(value.get("request")), unpacked(value.get("response"))
    asked = isinstance(request, Mapping) and any(name in request for name in ("messages", "prompt", "input"))
    return asked and isinstance(response, Mapping)


def _mixed(value: Mapping[str, Any]) -> bool:
    return ("epoch" in value and "target" in value) or "trajectory_format" in value


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """The one call of a line, as a trace, and its scores."""
    request, answer = _parts(value)
    if request.messages is None:
        yield Refused("broken", "the line holds no chat messages", where)
        return
    logged = next((found for name in _IDS if (found := identity(value.get(name)))), None)
    said = answer.message if answer else None
    trace = logged or trace_id(NAME, list(request.messages), said)
    call = call_of(request, answer, **tokens_of(value))
    metadata = unpacked(value.get("metadata"))
    yield Span(
        trace,
        "call",
        kind="llm",
        name=text(value.get("name")) or "",
        start=nanoseconds(
            next((value[name] for name in ("created", "created_at", "timestamp") if value.get(name)), None)
        ),
        error=str(value["error"]) if value.get("error") else None,
        module=text(value.get("mmgrpo.module")) or text(value.get("module")),
        inputs={"messages": list(request.messages)},
        outputs=said["content"] if said else None,
        call=call,
        user=text(value.get("user")),
        metadata=dict(metadata) if isinstance(metadata, Mapping) else {},
        where=where,
    )
    for name in SCORES:
        if name in value:
            yield Score(trace, name, number(value[name]), where=where)
    yield from named_scores(value, trace, where)


def _parts(value: Mapping[str, Any]) -> tuple[Request, Answer | None]:
    """What was asked and what was answered."""
    asked, said = unpacked(value.get("request")), unpacked(value.get("response"))
    if isinstance(asked, Mapping):
        return request_of(asked), answer_of(said)
    request = request_of({name: held for name, held in value.items() if name not in ("completion", "choices")})
    if "messages" not in value and "completion" in value:
        prompt = messages_of(value["prompt"]) if isinstance(value["prompt"], list) else request.messages
        return Request(prompt, request.tools, request.model, request.settings), answer_of(value["completion"])
    if isinstance(value.get("choices"), list):
        return request, answer_of({"choices": value["choices"], "model": value.get("model")})
    messages = request.messages or ()
    place = next((place for place in reversed(range(len(messages))) if messages[place]["role"] == "assistant"), None)
    if place is None:
        return request, None
    prompt = messages[:place] or None
    answer = Answer(messages[place], finish_reason=text(value.get("finish_reason")), model=text(value.get("model")))
    return Request(prompt, request.tools, request.model, known(request.settings)), answer
