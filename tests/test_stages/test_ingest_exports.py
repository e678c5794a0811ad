"""Exports as releases of SDKs wrote them, cut to what each of them says in a way of its own."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_stages.ingest_kit import Held, packed, read_file, read_value
from tests.test_stages.ingest_values import HEX, SPAN, VALUES

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
    more: dict[str, Any] = {"metadata__instructions": "Be brief.", "metadata__status": "completed"}
    call = _langfuse(tmp_path, "generation", input="2+2?", output="4", **more).call
    assert (list(call.messages), call.unseen) == (ASKED, False)
    call = _langfuse(
        tmp_path, "generation", input="2+2?", output="4", **more, metadata__previous_response_id="resp_1"
    ).call
    assert call.unseen


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


@pytest.mark.parametrize("parent", [{"parentId": SPAN[::-1]}, {"parentSpanContext": {"spanId": SPAN[::-1]}}])
def test_spans_as_javascripts_console_exporter_prints_them_are_spans(parent: dict[str, Any], tmp_path: Path) -> None:
    printed = {
        "resource": {"attributes": {"service.name": "unknown_service:node"}},
        "instrumentationScope": {"name": "ai"},
        "traceId": HEX,
        **parent,
        "name": "ai.generateText.doGenerate",
        "id": SPAN,
        "kind": 0,
        "timestamp": 1796119161758000,
        "duration": 84136.088,
        "attributes": {
            "ai.operationId": "ai.generateText.doGenerate",
            "ai.prompt.messages": json.dumps(ASKED),
            "ai.response.text": "4",
        },
        "status": {"code": 0},
        "events": [],
        "links": [],
    }
    found = read_value(printed, tmp_path)
    (span,) = found.spans
    assert (span.trace, span.span, span.parent) == (HEX, SPAN, SPAN[::-1])
    assert (span.start, span.end) == (1796119161758000000, 1796119161842136000)
    assert list(found.call.messages) == ASKED


RUN_ID, CALL_ID = "01a2310d-ae63-7000-8000-02cde31ca0df", "01a2310d-ae63-7000-8000-02cde31ca0e0"
PARTS: dict[str, Any] = {
    f"post.{RUN_ID}": {"id": RUN_ID, "trace_id": RUN_ID, "name": "program", "run_type": "chain"},
    f"post.{RUN_ID}.inputs": {"text": "bakery"},
    f"post.{RUN_ID}.outputs": {"line": "4"},
    f"post.{CALL_ID}": {
        "id": CALL_ID,
        "trace_id": RUN_ID,
        "parent_run_id": RUN_ID,
        "name": "ChatOpenAI",
        "run_type": "llm",
    },
    f"post.{CALL_ID}.inputs": {"messages": ASKED},
    f"patch.{CALL_ID}": {"id": CALL_ID, "trace_id": RUN_ID, "parent_run_id": RUN_ID, "run_type": "llm"},
    f"patch.{CALL_ID}.outputs": {"choices": [{"message": SAID, "finish_reason": "stop"}]},
    f"feedback.{HEX}": {"trace_id": RUN_ID, "run_id": RUN_ID, "key": "correct", "score": True},
    f"attachment.{CALL_ID}.picture": "bytes",
}


def _body(parts: dict[str, Any], end: str = "--\r\n") -> bytes:
    """A request as LangSmith's SDKs make it."""
    mark = "------LangSmithFormBoundaryk9evwg6ddh7"
    head = 'Content-Disposition: form-data; name="{}"\r\nContent-Type: application/json; length=1\r\n\r\n'
    told = (f"{mark}\r\n{head.format(name)}{json.dumps(value)}\r\n" for name, value in parts.items())
    return ("".join(told) + mark + end).encode()


@pytest.mark.parametrize("how", ["captured", "captured packed", "left", "left packed"])
def test_what_langsmiths_sdk_sends_is_its_runs(how: str, tmp_path: Path) -> None:
    body = _body(PARTS)
    if how.startswith("captured"):
        found = read_file(packed(tmp_path / "body", body, "gz" if how.endswith("packed") else "plain"))
    else:
        held = base64.b64encode(gzip.compress(body) if how.endswith("packed") else body).decode()
        found = read_value({"version": 1, "endpoint": "runs/multipart", "headers": {}, "body_base64": held}, tmp_path)
    assert (found.format, found.refused) == ("langsmith", [])
    assert (found.root.inputs, found.root.outputs) == ({"text": "bakery"}, {"line": "4"})
    assert (found.call.messages, found.call.completion, found.call.finish_reason) == (tuple(ASKED), "4", "stop")
    assert (found.score("correct").value, found.score("correct").span) == (1.0, None)


def test_a_batch_in_json_that_langsmiths_sdk_left_is_read_too(tmp_path: Path) -> None:
    run = {**PARTS[f"post.{RUN_ID}"], "inputs": {"text": "bakery"}}
    held = base64.b64encode(json.dumps({"post": [run], "patch": []}).encode()).decode()
    found = read_value({"version": 1, "endpoint": "runs/batch", "headers": {}, "body_base64": held}, tmp_path)
    assert found.root.inputs == {"text": "bakery"}


def test_a_broken_part_is_refused_with_its_trace_and_a_body_cut_short_says_so(tmp_path: Path) -> None:
    whole = _body({**PARTS, f"post.{CALL_ID}.extra": "?", f"post.{SPAN}.inputs": {}}).replace(b'"?"', b"?")
    found = read_file(packed(tmp_path / "broken", whole, "plain"))
    assert [(item.reason, item.trace) for item in found.refused] == [("broken", RUN_ID), ("broken", None)]
    assert found.call.completion == "4"
    cut = read_file(packed(tmp_path / "cut", _body(PARTS, end=""), "plain"))
    assert [item.detail for item in cut.refused] == ["the body is cut short: its last part is left out"]
    assert cut.call.completion == "4"
    (refused,) = read_value({"endpoint": "runs/multipart", "body_base64": "?"}, tmp_path).refused
    assert refused.reason == "broken"


def _openinference(tmp_path: Path, asked: Any, response: Any, **flat: Any) -> Held:
    attributes = {
        "openinference.span.kind": "LLM",
        "input.value": json.dumps(asked),
        "output.value": json.dumps(response),
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "4",
    }
    return _span({**attributes, **{f"llm.input_messages.{name}": value for name, value in flat.items()}}, tmp_path)


def test_what_openinference_has_no_attribute_for_is_taken_from_the_response(tmp_path: Path) -> None:
    said = {"message": {**SAID, "reasoning_content": "two and two"}, "finish_reason": "length"}
    flat = {"0.message.role": "user", "0.message.content": "2+2?"}
    call = _openinference(tmp_path, {}, {"choices": [said, said]}, **flat).call
    assert (call.completion, call.reasoning, call.finish_reason, call.choices) == ("4", "two and two", "length", 2)
    other = {"choices": [{"message": {"role": "assistant", "content": "5", "reasoning_content": "hm"}}]}
    assert _openinference(tmp_path, {}, other, **flat).call.reasoning is None


def test_a_message_whose_text_openinference_lost_is_that_of_the_request(tmp_path: Path) -> None:
    flat = {"0.message.role": "system", "1.message.role": "user", "1.message.content": "2+2?"}
    assert list(_openinference(tmp_path, {"messages": ASKED}, {}, **flat).call.messages) == ASKED
    other = [{"role": "system", "content": "Be brief."}]
    found = _openinference(tmp_path, {"messages": other}, {}, **flat).call.messages
    assert [item["content"] for item in found] == ["", "2+2?"]


def test_parts_that_openllmetry_made_json_of_are_text_but_answers_stay_what_they_are(tmp_path: Path) -> None:
    held = json.dumps([{"type": "text", "text": "Be brief."}])
    asked = [
        {"role": "system", "parts": [{"type": "text", "content": held}]},
        {"role": "user", "parts": [{"type": "text", "content": "2+2?"}]},
    ]
    said = [{"role": "assistant", "parts": [{"type": "text", "content": held}]}]
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps(said),
        "traceloop.association.properties.user_id": "u1",
    }
    found = _span(attributes, tmp_path)
    assert (list(found.call.messages), found.call.completion, found.root.user) == (ASKED, held, "u1")


MINI: dict[str, Any] = {
    "trajectory_format": "mini-swe-agent-1.1",
    "info": {"mini_version": "2.4.6", "exit_status": "Submitted"},
}
CALLED = {"function": {"name": "bash", "arguments": "{}"}, "id": "call_1", "type": "function"}


def _mini(tmp_path: Path, *messages: dict[str, Any], **info: Any) -> Held:
    return read_value({**MINI, "info": {**MINI["info"], **info}, "messages": [*ASKED, *messages]}, tmp_path)


def _turned_down(said: str) -> dict[str, Any]:
    response = {"choices": [{"message": {"role": "assistant", "content": said}, "finish_reason": "length"}]}
    return {
        "role": "user",
        "content": "Format error",
        "extra": {"interrupt_type": "FormatError", "response": response},
    }


def test_answers_that_mini_swe_agent_turned_down_are_calls_but_in_no_prompt(tmp_path: Path) -> None:
    found = _mini(tmp_path, _turned_down("I forgot"), {**SAID, "extra": {}}, {"role": "exit", "content": "done"})
    first, second = sorted(found.spans, key=lambda span: span.order)[1:]
    assert first.call is not None
    assert second.call is not None
    assert (first.call.completion, first.call.finish_reason, list(first.call.messages)) == ("I forgot", "length", ASKED)
    assert second.call.completion == "4"
    assert [item["content"] for item in second.call.messages] == ["Be brief.", "2+2?", "Format error"]
    other = _mini(tmp_path, _turned_down("I forgot again"), {**SAID, "extra": {}}, {"role": "exit", "content": "done"})
    assert other.root.trace != found.root.trace


def test_mini_swe_agents_responses_are_messages_and_its_settings_are_those_of_its_calls(tmp_path: Path) -> None:
    response = {
        "object": "response",
        "status": "completed",
        "model": "m-1",
        "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
            {"type": "function_call", "call_id": "call_1", "name": "bash", "arguments": "{}"},
        ],
        "extra": {"actions": []},
    }
    seen = {"type": "function_call_output", "call_id": "call_1", "output": "hi", "extra": {"returncode": 0}}
    config = {"model": {"model_name": "openai/m", "model_kwargs": {"temperature": 0.5, "max_tokens": 9}}}
    found = _mini(tmp_path, response, seen, SAID, config=config)
    assert found.refused == []
    first, second = found.calls
    assert (first.completion, len(first.tool_calls), first.model) == ("I look", 1, "m-1")
    assert [item["role"] for item in second.messages] == ["system", "user", "assistant", "tool"]
    assert {(call.temperature, call.max_new_tokens) for call in found.calls} == {(0.5, 9)}


def test_tools_that_one_call_of_a_conversation_used_were_offered_to_all(tmp_path: Path) -> None:
    used = {"role": "assistant", "content": "", "tool_calls": [CALLED]}
    assert [call.tools for call in _mini(tmp_path, SAID, used).calls] == [True, True]
    assert [call.tools for call in _mini(tmp_path, SAID).calls] == [False]


def _atif(tmp_path: Path, *steps: dict[str, Any]) -> Held:
    numbered = [{"step_id": number, "message": "", **step} for number, step in enumerate(steps, 1)]
    return read_value({"schema_version": "ATIF-v1.8", "agent": {"name": "a"}, "steps": numbered}, tmp_path)


def test_what_a_model_was_sent_after_its_context_was_cut_is_not_known(tmp_path: Path) -> None:
    cut = {"source": "system", "extra": {"context_management": {"type": "compaction", "boundary": "replace"}}}
    agent = {"source": "agent", "message": "4"}
    calls = _atif(tmp_path, {"source": "user", "message": "2+2?"}, agent, cut, agent).calls
    assert [call.unseen for call in calls] == [False, True]
    several = _atif(tmp_path, {"source": "user", "message": "2+2?"}, {**agent, "llm_call_count": 3}).calls
    assert [call.unseen for call in several] == [True]


def test_pictures_that_an_atif_agent_saw_are_told_of(tmp_path: Path) -> None:
    picture = {"type": "image", "source": {"media_type": "image/png", "path": "images/1.png"}}
    results = [{"content": [{"type": "text", "text": "the screen"}, picture]}]
    first = {"source": "agent", "message": "look", "observation": {"results": results}}
    _, call = _atif(tmp_path, {"source": "user", "message": "2+2?"}, first, {"source": "agent", "message": "4"}).calls
    assert call.messages[-1] == {"role": "user", "content": "the screen", "other_content": True}


def test_a_tau2_agent_is_not_shown_what_its_user_does_with_tools(tmp_path: Path) -> None:
    used = {"id": "c1", "name": "toggle_data", "arguments": {}, "requestor": "user"}
    messages = [
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "It does not work."},
        {"role": "assistant", "content": "Switch the data on."},
        {"role": "user", "content": None, "tool_calls": [used]},
        {"role": "tool", "id": "c1", "content": "on", "requestor": "user", "error": False},
        {"role": "user", "content": "I did."},
        {"role": "assistant", "content": "Fine."},
    ]
    run = {"task_id": "t1", "trial": 0, "messages": messages, "reward_info": {"reward": 1.0}}
    agent = {"implementation": "llm_agent", "llm": "m-1", "llm_args": {"temperature": 0.5}}
    found = read_value({"info": {"agent_info": agent}, "tasks": [], "simulations": [run]}, tmp_path)
    last = max(found.spans, key=lambda span: span.order).call
    assert last is not None
    assert [said["content"] for said in last.messages] == [
        "Hi!",
        "It does not work.",
        "Switch the data on.",
        "I did.",
    ]
    assert {(call.model, call.temperature) for call in found.calls} == {("m-1", 0.5)}
    assert found.score("reward").value == 1.0


def test_tools_that_a_nemo_gym_agent_brings_were_offered_to_all_its_calls(tmp_path: Path) -> None:
    used = {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"}
    first = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]}
    seen = {"type": "message", "role": "user", "content": "go on"}
    rollout = {
        "responses_create_params": {"input": "2+2?", "tools": []},
        "response": {"output": [first, seen, used]},
        "reward": 1.0,
    }
    assert [call.tools for call in read_value(rollout, tmp_path).calls] == [True, True]


def test_openais_evals_are_calls_with_the_graders_results(tmp_path: Path) -> None:
    found = read_value(VALUES["openai_evals: a page"][1], tmp_path)
    call = found.call
    assert (call.completion, call.finish_reason, call.model) == ("4", "length", "m-1")
    assert (call.temperature, call.max_new_tokens, list(call.messages)) == (0.5, 16, ASKED)
    assert (found.root.inputs, found.root.example) == ({"question": "2+2?"}, "5")
    assert (found.score("string check").value, found.score("other").value) == (1.0, 0.0)


def test_each_answer_of_a_completion_that_is_a_conversation_is_a_call(tmp_path: Path) -> None:
    used = {"role": "assistant", "content": "let me", "tool_calls": [CALLED]}
    seen = {"role": "tool", "tool_call_id": "call_1", "content": "4"}
    row = {"example_id": 3, "prompt": ASKED, "completion": [used, seen, SAID], "info": {}, "reward": 0.5}
    found = read_value(row, tmp_path)
    first, second = found.calls
    assert (list(first.messages), first.completion, first.tools) == (ASKED, "let me", True)
    assert ([said["role"] for said in second.messages], second.completion) == (
        ["system", "user", "assistant", "tool"],
        "4",
    )
    assert (found.root.example, found.root.call, found.score("reward").value) == ("3", None, 0.5)
    single = {**row, "completion": [SAID]}
    assert read_value(single, tmp_path).call.completion == "4"
    assert read_value({**single, "generation_ms": 7}, tmp_path).root.trace != read_value(single, tmp_path).root.trace


def test_jaegers_tags_are_attributes_and_its_references_parents(tmp_path: Path) -> None:
    found = read_value(VALUES["jaeger: what its page hands out"][1], tmp_path)
    (span,) = found.spans
    assert (span.trace, span.span, span.parent, span.scope) == (HEX, SPAN, SPAN[::-1], "openai")
    assert (span.start, span.end, span.error) == (1767323045000000000, 1767323045001500000, "cut")
    assert (list(found.call.messages), found.call.completion, found.call.temperature) == (ASKED, "4", 0.5)
