"""ATIF, the trajectories of Harbor: an agent's steps in order, each with its message, tool calls and observation.

Sub-agents stand inside (`subagent_trajectories`), or beside their caller in one object, and are then part of its trace;
those in files of their own are traces of their own. The root names all that it called in its metadata.
Steps copied from an earlier trajectory, and steps that called no model, are part of the prompt but no calls. What the
model was sent after the agent cut its context, or in a step of several calls, the log does not say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stages.ingest.atif_steps import called_by, cuts_context, message_of_step, prompt_after, span_of_step
from stages.ingest.guard import BROKEN, refusal
from stages.ingest.normal import Item, Refused, Span
from stages.ingest.parts import content_of
from stages.ingest.shape import Shape
from stages.ingest.trajectory import ROOT, trace_id
from stages.ingest.values import identity, nanoseconds, text

NAME = "atif"


def recognises(value: Any, shape: Shape) -> bool:
    """A trajectory with a schema of ATIF, or an object of several."""
    if not isinstance(value, Mapping):
        return False
    return _is_one(value) or any(_is_one(inner) for inner in value.values())


def _is_one(value: Any) -> bool:
    known = isinstance(value, Mapping) and isinstance(value.get("steps"), list)
    return known and str(value.get("schema_version")).upper().startswith("ATIF")


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """A trajectory, or each that an object holds."""
    held = [value] if _is_one(value) else [inner for inner in value.values() if _is_one(inner)]
    called = {name for inner in held for name in _called(inner)}
    tops = [inner for inner in held if not called & set(_names(inner))] or held
    for top in tops:
        trace = next(iter(_names(top)), None) or trace_id(NAME, top.get("agent"), top["steps"])
        beside = [inner for inner in held if inner is not top and inner not in tops]
        yield from _trajectory(top, _Place(trace, _prefix(top), None, where), beside)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a trajectory stands in a trace."""

    trace: str
    prefix: str
    """Before the ids of its spans."""
    above: str | None
    where: str


def _names(held: Mapping[str, Any]) -> list[str]:
    """By which others refer to a trajectory."""
    found = (identity(held.get(name)) for name in ("session_id", "trajectory_id"))
    return [name for name in found if name is not None]


def _called(held: Mapping[str, Any]) -> list[str]:
    return [name for step in held["steps"] for name in called_by(step)]


def _prefix(held: Mapping[str, Any]) -> str:
    """Several trajectories may share a session, and then have ids of their own."""
    own = identity(held.get("trajectory_id"))
    return f"{own}/" if own and held.get("session_id") else ""


def _trajectory(held: Mapping[str, Any], place: _Place, beside: Sequence[Any] = ()) -> Iterator[Item]:
    agent = held.get("agent")
    agent = agent if isinstance(agent, Mapping) else {}
    root, called = f"{place.prefix}{ROOT}", _called(held)
    steps = [step for step in held["steps"] if isinstance(step, Mapping)]
    said = [(step.get("source"), content_of(step.get("message")).text) for step in steps]
    yield Span(
        place.trace,
        root,
        place.above,
        "agent",
        text(agent.get("name")) or "",
        nanoseconds(steps[0].get("timestamp")) if steps else None,
        nanoseconds(steps[-1].get("timestamp")) if steps else None,
        agent=text(agent.get("name")),
        inputs=next((words for source, words in said if source == "user"), None),
        outputs=next((words for source, words in reversed(said) if source == "agent"), None),
        metadata={
            **({"agent_version": agent["version"]} if agent.get("version") else {}),
            **({"subagents": called} if called else {}),
        },
        where=place.where,
    )
    callers: dict[str, str] = {}
    prompt: list[Mapping[str, Any]] = []
    cut = False
    for number, step in enumerate(held["steps"]):
        where = f"{place.where}, step {number + 1}"
        try:
            made = message_of_step(step)
            span = span_of_step(step, made, tuple(prompt), agent, order=number + 1, root=root, trace=place.trace)
            if cut and span is not None and span.call is not None:
                span = replace(span, call=replace(span.call, unseen=True))
            prompt += prompt_after(step, made)
            cut = cut or cuts_context(step)
        except BROKEN as error:
            yield refusal(error, where, place.trace)
        else:
            callers.update(dict.fromkeys(called_by(step), root if span is None else f"{place.prefix}{span.span}"))
            yield from () if span is None else (_placed(span, place.prefix, where),)
    yield from _below(held, place, callers, beside)


def _placed(span: Span, prefix: str, where: str) -> Span:
    return replace(span, span=f"{prefix}{span.span}", where=where)


def _below(held: Mapping[str, Any], place: _Place, callers: Mapping[str, str], beside: Sequence[Any]) -> Iterator[Item]:
    """Sub-agents that stand inside, and those beside that this trajectory called."""
    inside = held.get("subagent_trajectories")
    near = [inner for inner in beside if set(_names(inner)) & set(callers)]
    far = [inner for inner in beside if inner not in near]
    for number, inner in enumerate([*(inside if isinstance(inside, list) else []), *near]):
        where = f"{place.where}, sub-agent {number + 1}"
        if not isinstance(inner, Mapping) or not isinstance(inner.get("steps"), list):
            yield Refused("broken", "the sub-agent is no trajectory", where, place.trace)
            continue
        known = _names(inner)[::-1]
        above = next((callers[name] for name in known if name in callers), f"{place.prefix}{ROOT}")
        prefix = f"{place.prefix}{known[0] if known else number + 1}/"
        yield from _trajectory(inner, _Place(place.trace, prefix, above, where), far)
