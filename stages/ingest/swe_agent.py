"""SWE-agent's and mini-swe-agent's trajectories: `{trajectory, history, info}`, `{messages, info}`, or a bare list.

An answer without an action is in no history: mini-swe-agent keeps it beside the message that tells the model so.
The prompt of a step is its `query`, where it was logged. Otherwise it is what stands before it in the history, which
may be more than was sent, as SWE-agent can leave out old observations; the call's metadata then says `history`.
The logs hold no reward: whether the issue was resolved stands in a report of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages.ingest.answers import answer_of
from stages.ingest.conventions import sampling
from stages.ingest.guard import each
from stages.ingest.messages import messages_of
from stages.ingest.normal import Item, Refused, Span
from stages.ingest.requests import known
from stages.ingest.responses import chat_items
from stages.ingest.shape import Shape
from stages.ingest.trajectory import ROOT, calls_of, normal, trace_id
from stages.ingest.values import text, unpacked

NAME = "swe_agent"
WHOLE = True
_MINI = "mini-swe-agent"
_FINE = ("submitted", "submit", "Submitted")


def recognises(value: Any, shape: Shape) -> bool:
    """A trajectory, a conversation on a line, or the first message of a file that is one."""
    if isinstance(value, list):
        return (
            shape == "lines" and bool(value) and isinstance(value[0], Mapping) and {"role", "content"} <= set(value[0])
        )
    if not isinstance(value, Mapping):
        return False
    if shape == "array" and set(value) >= {"role", "content"} and isinstance(value["role"], str):
        return True
    if isinstance(value.get("trajectory"), list) and "history" in value:
        return True
    info = value.get("info")
    mini = isinstance(info, Mapping) and ("exit_status" in info or "mini_version" in info)
    return isinstance(value.get("messages"), list) and (mini or _MINI in str(value.get("trajectory_format")))


def read(value: Any, where: str) -> Iterator[Item]:
    """Each trajectory as a root, and its calls."""
    if not isinstance(value, list):
        yield from _trajectory(value, where)
    elif value and all(isinstance(item, Mapping) and "role" in item for item in value):
        yield from _conversation({}, value, where)
    else:
        yield from each(value, lambda item: _trajectory(item, where), where, "trajectory")


def _trajectory(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    attempts = value.get("attempts")
    if isinstance(attempts, list) and attempts:  # the rest of the file repeats the attempt that was chosen
        shared = known({"instance_id": value.get("instance_id"), "environment": value.get("environment")})
        yield from each(attempts, lambda item: _trajectory({**shared, **item}, where), where, "attempt")
        return
    held = value.get("history") or value.get("messages")
    history = unpacked(held)
    if not isinstance(history, list):
        yield Refused("broken", "the trajectory has neither `history` nor `messages`", where)
        return
    yield from _conversation(value, history, where)


def _conversation(value: Mapping[str, Any], history: Sequence[Any], where: str) -> Iterator[Item]:
    info = value.get("info")
    info = info if isinstance(info, Mapping) else {}
    history = [_entry(item) for item in history]
    messages = normal(history)
    if messages is None:
        yield Refused("broken", "the history is not a list of chat messages", where)
        return
    turned_down = {place: said for place, item in enumerate(history) if (said := _turned_down(item))}
    own = [dict(said) for said in turned_down.values()]
    trace = trace_id(NAME, value.get("instance_id"), info.get("exit_status"), messages, *([own] if own else []))
    shown = [bool(item.get("is_demo")) for item in history]
    asked = [said["content"] for said, demo in zip(messages, shown, strict=True) if said["role"] == "user" and not demo]
    last = next((said["content"] for said in reversed(messages) if said["role"] == "assistant"), None)
    status = text(info.get("exit_status"))
    yield Span(
        trace,
        ROOT,
        kind="agent",
        error=status if status and not status.startswith(_FINE) else None,
        inputs={"instruction": asked[0] if asked else None},
        outputs=info.get("submission") if info.get("submission") is not None else last,
        example=text(value.get("instance_id")),
        metadata=known({"environment": value.get("environment"), "exit_status": status}),
        where=where,
    )
    calls = calls_of(trace, messages, where=where, beside=turned_down, **_settings(value, info))
    spans = [span for span in calls if not shown[span.order - 1]]
    queries = _queries(value, len(spans))
    for span, query in zip(spans, queries, strict=True):
        yield _with_log(span, history[span.order - 1], query)


def _queries(value: Mapping[str, Any], count: int) -> list[Any]:
    """What each call was sent, where every step of the trajectory says it."""
    steps = value.get("trajectory")
    found = [step.get("query") for step in steps if isinstance(step, Mapping)] if isinstance(steps, list) else []
    return found if len(found) == count else [None] * count


def _entry(item: Any) -> Any:
    """An entry of the history as a chat message; those of the Responses API are none."""
    if isinstance(item, Mapping) and item.get("object") == "response":
        said = answer_of(item)
        beside = item.get("extra")
        extra = {**(beside if isinstance(beside, Mapping) else {}), "response": item}
        return {"role": "assistant", **(said.message if said and said.message else {}), "extra": extra}
    return chat_items([item])[0] if isinstance(item, Mapping) and "role" not in item else item


def _turned_down(entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The answer that a message turns down, which the agent does not show the model again."""
    extra = entry.get("extra")
    if not isinstance(extra, Mapping) or extra.get("interrupt_type") != "FormatError":
        return None
    said = answer_of(extra.get("response") or extra.get("model_response"))
    return said.message if said else None


def _settings(value: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any]:
    """The model, and how it was sampled from, by the agent's configuration."""
    replayed = unpacked(value.get("replay_config"))
    agent = replayed.get("agent") if isinstance(replayed, Mapping) else None
    for config in (info.get("config"), agent):
        model = config.get("model") if isinstance(config, Mapping) else None
        if isinstance(model, Mapping):
            given = model.get("model_kwargs")
            name = text(model.get("model_name")) or text(model.get("name"))
            return {"model": name, **sampling({**model, **(given if isinstance(given, Mapping) else {})})}
    return {}


def _with_log(span: Span, entry: Mapping[str, Any], query: Any) -> Span:
    """A call with what its history entry, its query and the response in it say."""
    assert span.call is not None
    sent = messages_of(query)
    extra = entry.get("extra")
    answer = answer_of(extra.get("response")) if isinstance(extra, Mapping) and extra.get("response") else None
    changes: dict[str, Any] = {"messages": sent} if sent else {}
    if answer is not None:
        changes |= known({"finish_reason": answer.finish_reason, "model": answer.model}) | dict(answer.tokens)
    return replace(
        span,
        agent=text(entry.get("agent")),
        call=replace(span.call, **changes),
        metadata={} if sent else {"prompt": "history"},
    )
