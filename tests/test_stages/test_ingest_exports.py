"""Exports as releases of SDKs wrote them, cut to what each of them says in a way of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_stages.ingest_kit import Held, read_value
from tests.test_stages.ingest_values import HEX, SPAN

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
SAID = {"role": "assistant", "content": "4"}


def _span(attributes: dict[str, Any], tmp_path: Path, **more: Any) -> Held:
    span = {"trace_id": HEX, "span_id": SPAN, "name": "step", "start_time": 1, "attributes": attributes, **more}
    return read_value(span, tmp_path)


def _langfuse(tmp_path: Path, kind: str, trace: dict[str, Any] | None = None, **said: Any) -> Held:
    attributes = {f"langfuse.observation.{name.replace('__', '.')}": value for name, value in said.items()}
    return _span({"langfuse.observation.type": kind, **(trace or {}), **attributes}, tmp_path)


def test_langfuses_spans_of_opentelemetry_are_its_observations(tmp_path: Path) -> None:
    trace = {
        "user.id": "u1",
        "session.id": "s1",
        "langfuse.trace.metadata.tier": "gold",
        "langfuse.trace.input": '{"q": "2+2?"}',
    }
    found = _langfuse(
        tmp_path,
        "generation",
        trace,
        input=json.dumps({"messages": ASKED}),
        output=json.dumps(SAID),
        model__name="m-1",
        model__parameters='{"max_tokens":5,"temperature":0.1,"response_format":""}',
    )
    call = found.call
    assert list(call.messages) == ASKED
    assert (call.completion, call.model, call.temperature, call.max_new_tokens) == ("4", "m-1", 0.1, 5)
    assert found.root.inputs == {"q": "2+2?"}
    assert found.root.user == "u1"
    assert found.root.metadata == {"langfuse.trace.metadata.tier": "gold", "session": "s1"}


def test_langfuses_spans_fail_by_their_level_and_agents_have_their_name(tmp_path: Path) -> None:
    failed = _langfuse(
        tmp_path, "generation", input=json.dumps({"messages": ASKED}), level="ERROR", status_message="Error: 500"
    )
    assert (failed.root.error, failed.call.completion) == ("Error: 500", None)
    agent = _langfuse(tmp_path, "agent", input="a", output="b").root
    assert (agent.kind, agent.agent, agent.inputs, agent.outputs) == ("agent", "step", "a", "b")
    node = _langfuse(tmp_path, "chain", metadata__langgraph_node="plan").root
    assert (node.kind, node.agent) == ("chain", "plan")


def test_instructions_that_langfuse_keeps_in_the_metadata_are_part_of_the_prompt(tmp_path: Path) -> None:
    more = {"metadata__instructions": "Be brief.", "metadata__status": "completed"}
    call = _langfuse(tmp_path, "generation", input="2+2?", output="4", **more).call
    assert (list(call.messages), call.continued) == (ASKED, False)
    call = _langfuse(
        tmp_path, "generation", input="2+2?", output="4", **more, metadata__previous_response_id="resp_1"
    ).call
    assert call.continued


def _generated(message: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A run of LangChain's JavaScript."""
    return {
        "id": HEX,
        "trace_id": HEX,
        "name": "ChatOpenAI",
        "run_type": "llm",
        "inputs": {"messages": ASKED},
        "outputs": {"generations": [[{"text": "4", "message": {"lc": 1, "type": "constructor", **message}, **more}]]},
        "extra": {"metadata": {"lc_agent_name": "planner", "langgraph_node": "model_request"}},
    }


def _ai(**metadata: Any) -> dict[str, Any]:
    return {
        "id": ["langchain_core", "messages", "AIMessage"],
        "kwargs": {"content": "4", "response_metadata": metadata},
    }


@pytest.mark.parametrize(
    "run",
    [
        _generated(_ai(), generationInfo={"finish_reason": "length", "model_name": "m-1"}),
        _generated(_ai(finish_reason="length", model_name="m-1")),
        _generated(_ai(incomplete_details={"reason": "length"}, model="m-1")),
    ],
    ids=["generationInfo", "response_metadata", "incomplete_details"],
)
def test_langchains_javascript_says_why_an_answer_ended(run: dict[str, Any], tmp_path: Path) -> None:
    call = read_value(run, tmp_path).call
    assert (call.completion, call.finish_reason, call.model) == ("4", "length", "m-1")


def test_calls_of_an_agent_that_langchain_built_are_the_agents_and_not_its_nodes(tmp_path: Path) -> None:
    run = _generated(_ai())
    assert read_value(run, tmp_path).root.agent == "planner"
    run["extra"]["metadata"]["langgraph_node"] = "tools"
    assert read_value(run, tmp_path).root.agent == "tools"


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        ({"tool_calls": [{"function": {"name": "weather", "arguments": "{}"}}]}, 1),
        ([{"choices": [{"index": 0, "delta": {"reasoning_content": part}}]} for part in ("I ", "think")], 0),
    ],
    ids=["tool calls alone", "streamed reasoning"],
)
def test_an_answer_without_text_is_an_answer(answer: Any, calls: int, tmp_path: Path) -> None:
    call = read_value({"request": {"messages": ASKED}, "response": {"output": answer}}, tmp_path, "openai_chat").call
    assert call.completion == ""
    assert len(call.tool_calls) == calls
    assert call.reasoning == (None if calls else "I think")


def test_more_answers_than_the_log_has_are_counted_by_what_was_asked_for(tmp_path: Path) -> None:
    for n, choices in ((1, 1), (2, 2), (None, 1), ("many", 1)):
        found = _langfuse(
            tmp_path, "generation", input=json.dumps(ASKED), output="4", model__parameters=json.dumps({"n": n})
        )
        assert found.call.choices == choices
    chat = {"messages": ASKED, "n": 2, "choices": [{"message": SAID}, {"message": SAID}, {"message": SAID}]}
    assert read_value(chat, tmp_path).call.choices == 3
