"""NeMo-Gym rollouts: `{responses_create_params, response, reward}`, one a line, in the Responses API's form.

Every answer of the model is a call, whose prompt is what came before it; the ids and log-probabilities of an answer
stand on its last item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.guard import each
from stages.ingest.logged import tokens_of
from stages.ingest.messages import one_message
from stages.ingest.normal import Call, Item, Refused, Score, Span
from stages.ingest.requests import Request, known, request_of
from stages.ingest.responses import chat_items
from stages.ingest.shape import Shape
from stages.ingest.trajectory import ROOT, trace_id
from stages.ingest.values import nanoseconds, number, text

NAME = "nemo_gym"


def recognises(value: Any, shape: Shape) -> bool:
    """A rollout."""
    return isinstance(value, Mapping) and "responses_create_params" in value and "response" in value


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """The rollout as a root, one call for each answer, and the reward with its components."""
    asked, response = value["responses_create_params"], value.get("response")
    response = response if isinstance(response, Mapping) else {}
    given = {name: held for name, held in response.items() if name in _SETTINGS and held is not None}
    request = request_of({**given, **known(asked)})
    trace = trace_id(NAME, value.get("_ng_task_index"), value.get("_ng_rollout_index"), asked, response)
    agent = value.get("agent_ref")
    name = text(agent.get("name")) if isinstance(agent, Mapping) else None
    output = response.get("output")
    turns = chat_items(output if isinstance(output, list) else [])
    said = [turn.get("content") for turn in turns if isinstance(turn, Mapping) and turn.get("role") == "assistant"]
    task = value.get("_ng_task_index")
    yield Span(
        trace,
        ROOT,
        kind="agent",
        name=name or "",
        start=nanoseconds(response.get("created_at")),
        error=_error(response),
        agent=name,
        inputs={"input": asked.get("input")},
        outputs=said[-1] if said else None,
        example=None if task is None else str(task),
        metadata=known({"rollout_index": value.get("_ng_rollout_index")}),
        where=where,
    )
    if request.messages is None:
        yield Refused("broken", "`responses_create_params.input` holds no messages", where, trace)
        return
    yield from _calls(turns, request, response, agent=name, trace=trace, where=where)
    yield from _scores(value, trace, where)


_SETTINGS = ("temperature", "top_p", "max_output_tokens", "model", "instructions")
"""Of which the response repeats what the server took, also where the request left it open."""


def _calls(
    turns: list[Any], request: Request, response: Mapping[str, Any], *, agent: str | None, trace: str, where: str
) -> Iterator[Item]:
    prompt = list(request.messages or ())
    answers = [turn for turn in turns if isinstance(turn, Mapping) and turn.get("role") == "assistant"]
    count, tools = len(answers), request.tools or any(turn.get("tool_calls") for turn in answers)

    def one(turn: Any) -> Iterator[Item]:
        made = one_message(turn)
        if made is None:
            raise ValueError("the item is neither an answer nor the output of a tool")
        if made["role"] == "assistant":
            place = len(prompt)
            tokens = tokens_of(turn)
            logged = _logged(turn, tokens, response, count)
            call = Call(
                messages=tuple(prompt),
                completion=made["content"],
                tool_calls=tuple(made.get("tool_calls", ())),
                reasoning=made.get("reasoning"),
                tools=tools,
                model=text(response.get("model")) or request.model,
                **request.settings,
                **logged,
            )
            yield Span(trace, f"message-{place}", ROOT, "llm", order=place + 1, agent=agent, call=call, where=where)
        prompt.append(made)

    yield from each(turns, one, where, "item", trace)


def _logged(turn: Mapping[str, Any], tokens: dict[str, Any], response: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Tokens, and why the answer ended where the response has but one."""
    cut = response.get("incomplete_details")
    reason = text(cut.get("reason")) if isinstance(cut, Mapping) else None
    done = "stop" if response.get("status") == "completed" else None
    return {**tokens, "finish_reason": (reason or done) if count == 1 else None}


def _error(response: Mapping[str, Any]) -> str | None:
    found = response.get("error")
    if isinstance(found, Mapping):
        return str(found.get("message") or found.get("code") or "failed")
    return str(found) if found else "failed" if response.get("status") == "failed" else None


def _scores(value: Mapping[str, Any], trace: str, where: str) -> Iterator[Item]:
    if "reward" in value:
        yield Score(trace, "reward", number(value["reward"]), source="environment", where=where)
    parts = value.get("reward_components")
    for name, found in parts.items() if isinstance(parts, Mapping) else ():
        yield Score(trace, f"reward.{name}", number(found), source="environment", where=where)
