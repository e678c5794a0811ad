"""Trajectories of tau-bench: `{task_id, trial, reward, info, traj}`, `traj` being a conversation with tools.

And those of tau2-bench, `{tasks, simulations}`, of which each simulation has its `messages` and its `reward_info`.
There the simulated user has tools too, whose calls and results the agent does not see.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.conventions import sampling
from stages.ingest.guard import each
from stages.ingest.normal import Item, Refused, Score, Span
from stages.ingest.shape import Shape
from stages.ingest.trajectory import ROOT, calls_of, normal, trace_id
from stages.ingest.values import number, text

NAME = "tau_bench"
SPLIT = ("simulations",)
_FAILED = ("agent_error", "user_error", "infrastructure_error")


def recognises(value: Any, shape: Shape) -> bool:
    """An object with `task_id` and `traj`, or with simulations."""
    if isinstance(value, Mapping) and isinstance(held := value.get("simulations"), list) and held:
        return _is_simulation(held[0])
    return _is_simulation(value) or _is_run(value)


def _is_simulation(value: Any) -> bool:
    names = ("task_id", "messages", "reward_info")
    return isinstance(value, Mapping) and all(name in value for name in names)


def _is_run(value: Any) -> bool:
    return isinstance(value, Mapping) and "task_id" in value and isinstance(value.get("traj"), list)


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """Each run as a root with the instruction as its input, and one call for each message of the assistant."""
    if isinstance(held := value.get("simulations"), list):
        settings = _settings(value.get("info"))
        yield from each(held, lambda run: _run(_older(run, value.get("tasks")), where, settings), where, "simulation")
    else:
        yield from _run(_older(value, None) if "traj" not in value else value, where, {})


def _older(run: Mapping[str, Any], tasks: Any) -> dict[str, Any]:
    """A simulation of tau2-bench as tau-bench has its runs."""
    told = run.get("reward_info")
    reward = {"reward": told.get("reward")} if isinstance(told, Mapping) else {}
    known = [task for task in tasks if isinstance(task, Mapping)] if isinstance(tasks, list) else []
    task = next((task for task in known if task.get("id") == run["task_id"]), {})
    said = json.dumps(asked, sort_keys=True) if (asked := task.get("user_scenario")) else None
    failed = run.get("termination_reason") in _FAILED
    info = {"task": {"instruction": said}, "error": run["termination_reason"] if failed else None}
    seen = run["messages"]
    seen = [said for said in seen if not _of_the_users_tools(said)] if isinstance(seen, list) else seen
    return {"task_id": run["task_id"], "trial": run.get("trial"), "traj": seen, "info": info, **reward}


def _of_the_users_tools(said: Any) -> bool:
    """Whether a message is between the simulated user and its tools."""
    if not isinstance(said, Mapping):
        return False
    return bool(said.get("tool_calls")) if said.get("role") == "user" else said.get("requestor") == "user"


def _settings(info: Any) -> dict[str, Any]:
    """The agent's model, and how it was sampled from."""
    agent = info.get("agent_info") if isinstance(info, Mapping) else None
    if not isinstance(agent, Mapping):
        return {}
    given = agent.get("llm_args")
    return {"model": text(agent.get("llm")), **sampling(given if isinstance(given, Mapping) else {})}


def _run(value: Mapping[str, Any], where: str, settings: Mapping[str, Any]) -> Iterator[Item]:
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
    yield from calls_of(trace, messages, where=where, tools=True, **settings)
    if "reward" in value:
        yield Score(trace, "reward", number(value["reward"]), where=where)
