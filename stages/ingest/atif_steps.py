"""One step of an ATIF trajectory: the message that it is, the call that made it, and what the next call sees of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.ingest.logged import tokens_of
from stages.ingest.messages import message
from stages.ingest.normal import Call, Span
from stages.ingest.values import identity, integer, nanoseconds, text

_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def message_of_step(step: Mapping[str, Any]) -> dict[str, Any]:
    """The step's message in normal form.

    Raises:
        ValueError: when nobody is known to have said it.
    """
    made = message(_ROLES.get(str(step.get("source"))), step.get("message"), step)
    if made is None:
        raise ValueError(f"the step's source is {step.get('source')!r}, expected system, user or agent")
    return made


def span_of_step(
    step: Mapping[str, Any],
    made: Mapping[str, Any],
    prompt: tuple[Any, ...],
    agent: Mapping[str, Any],
    *,
    order: int,
    root: str,
    trace: str,
) -> Span | None:
    """The LM call of a step; None where it made none."""
    if made["role"] != "assistant" or step.get("is_copied_context") or step.get("llm_call_count") == 0:
        return None
    call = Call(
        messages=prompt,
        completion=made["content"],
        tool_calls=tuple(made.get("tool_calls", ())),
        reasoning=made.get("reasoning"),
        tools=bool(agent.get("tool_definitions")),
        unseen=(integer(step.get("llm_call_count")) or 0) > 1,
        model=text(step.get("model_name")) or text(agent.get("model_name")),
        **tokens_of(step.get("metrics")),
    )
    start, own = nanoseconds(step.get("timestamp")), str(step.get("step_id", order))
    return Span(trace, own, root, "llm", start=start, order=order, call=call)


def prompt_after(step: Mapping[str, Any], made: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The step's message, and what the agent observed: of a tool call where it says so, else as if a user said it."""
    found = [made]
    for result in _results(step):
        if result.get("content"):
            call = text(result.get("source_call_id"))
            seen = message("tool" if call else "user", result["content"], {"tool_call_id": call})
            found += [seen] if seen else []
    return found


def cuts_context(step: Mapping[str, Any]) -> bool:
    """Whether the agent made its context shorter here: what it sends from now on is not all that was said."""
    extra = step.get("extra")
    held = extra.get("context_management") if isinstance(extra, Mapping) else None
    return isinstance(held, Mapping) and held.get("type") == "compaction"


def called_by(step: Any) -> list[str]:
    """The ids of the sub-agents that a step names."""
    found: list[str] = []
    for result in _results(step):
        held = result.get("subagent_trajectory_ref")
        for item in [held] if isinstance(held, Mapping) else held if isinstance(held, list) else []:
            if isinstance(item, Mapping):
                names = (identity(item.get(name)) for name in ("trajectory_id", "session_id"))
                found += [name for name in names if name is not None][:1]
    return found


def _results(step: Any) -> list[Mapping[str, Any]]:
    held = step.get("observation") if isinstance(step, Mapping) else None
    held = held.get("results") if isinstance(held, Mapping) else None
    return [item for item in held if isinstance(item, Mapping)] if isinstance(held, list) else []
