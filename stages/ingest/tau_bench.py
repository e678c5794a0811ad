"""Trajectories of tau-bench: `{task_id, trial, reward, info, traj}`, `traj` being a conversation with tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.normal import Item, Refused, Score, Span
from stages.ingest.read import Shape
from stages.ingest.trajectory import ROOT, calls_of, normal, trace_id
from stages.ingest.values import number

NAME = "tau_bench"


def recognises(value: Any, shape: Shape) -> bool:
    """An object with `task_id` and `traj`."""
    return isinstance(value, Mapping) and "task_id" in value and isinstance(value.get("traj"), list)


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """The run as a root with the instruction as its input, and one call for each message of the assistant."""
    messages = normal(value["traj"])
    if messages is None:
        yield Refused("broken", "`traj` is not a list of chat messages", where)
        return
    trace = trace_id(NAME, value["task_id"], value.get("trial"), messages)
    info = value.get("info")
    info = info if isinstance(info, Mapping) else {}
    task = info.get("task")
    task = task if isinstance(task, Mapping) else {}
    first = next((said["content"] for said in messages if said["role"] == "user"), None)
    yield Span(
        trace,
        ROOT,
        kind="agent",
        error=str(info["error"]) if info.get("error") else None,
        inputs={"instruction": task.get("instruction") or first},
        outputs=next((said["content"] for said in reversed(messages) if said["role"] == "assistant"), None),
        example=str(value["task_id"]),
        metadata={"trial": value.get("trial"), **({"user": task["user_id"]} if task.get("user_id") else {})},
        where=where,
    )
    yield from calls_of(trace, messages, where=where, tools=True)
    if "reward" in value:
        yield Score(trace, "reward", number(value["reward"]), where=where)
