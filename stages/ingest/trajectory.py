"""What formats of whole trajectories share: spans for a root and for the calls below it, in the order of a list."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stages.ingest.messages import message
from stages.ingest.normal import Call, Span

ROOT = "root"


def trace_id(format_name: str, *parts: Any) -> str:
    """An id for a trajectory whose log has none: a digest of what tells it from others.

    Also of what has no canonical form, such as half of a surrogate pair.
    """
    return hashlib.sha256(json.dumps([format_name, *parts], sort_keys=True, default=str).encode()).hexdigest()[:32]


def normal(items: Sequence[Any]) -> tuple[dict[str, Any], ...] | None:
    """Chat messages in normal form; None where one of them is none."""
    found = [
        message(item.get("role"), item.get("content"), item) if isinstance(item, Mapping) else None for item in items
    ]
    return None if any(item is None for item in found) else tuple(item for item in found if item is not None)


def calls_of(
    trace: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    agent: str | None = None,
    where: str = "",
    beside: Mapping[int, Mapping[str, Any]] | None = None,
    **settings: Any,
) -> Iterator[Span]:
    """Each assistant message of a conversation as one LM call, whose prompt is the messages before it.

    Where one of them calls a tool, all were offered tools.

    Args:
        trace: id of the trajectory.
        messages: in normal form.
        agent: who speaks, where the format says.
        where: for messages.
        beside: answers that are no messages, by the place of the message that answers them.
        **settings: further fields of each `Call`, such as `model`.
    """
    settings = {"tools": any(said.get("tool_calls") or said["role"] == "tool" for said in messages), **settings}
    for place, turn in enumerate(messages):
        said = turn if turn["role"] == "assistant" else (beside or {}).get(place)
        if said is None:
            continue
        call = Call(
            messages=tuple(messages[:place]),
            completion=said["content"],
            tool_calls=tuple(said.get("tool_calls", ())),
            reasoning=said.get("reasoning"),
            **settings,
        )
        yield Span(trace, f"message-{place}", ROOT, "llm", order=place + 1, agent=agent, call=call, where=where)
