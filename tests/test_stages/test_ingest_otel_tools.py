"""What tools log in OpenTelemetry's spans in ways of their own: what they leave out, say twice or call otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stages.ingest.tree import Tree, grow
from tests.test_stages.ingest_kit import TRACES, read_file, read_value
from tests.test_stages.otel_kit import ANSWER, ASKED, PARTS, chat, event, span


def test_messages_that_were_logged_without_their_contents_are_not_there() -> None:
    found = read_file(TRACES / "otel_genai_flat/openai_v2_without_content.jsonl")
    tree = grow(found.spans)
    assert isinstance(tree, Tree)
    (one,) = tree.calls()
    assert one.call is not None
    assert (one.call.messages, one.call.completion, one.call.finish_reason) == ((), None, "stop")
    assert one.call.temperature == 0.5


@pytest.mark.parametrize("part", [{"type": "text"}, {"type": "image", "content": "x"}])
def test_an_answer_without_its_text_is_none(part: dict[str, Any], tmp_path: Path) -> None:
    said = json.dumps([{"role": "assistant", "parts": [part]}])
    call = chat({"gen_ai.input.messages": json.dumps(PARTS), "gen_ai.output.messages": said}, tmp_path).call
    assert (call.messages[0]["content"], call.completion) == ("2+2?", None)


def test_what_a_model_said_is_its_answer_whatever_role_it_is_given(tmp_path: Path) -> None:
    said = json.dumps([{**ANSWER[0], "role": "unknown"}])
    call = chat({"gen_ai.input.messages": json.dumps(PARTS), "gen_ai.output.messages": said}, tmp_path).call
    assert (call.completion, call.finish_reason) == ("4", "stop")


def test_strands_logs_parts_of_messages_that_have_no_type() -> None:
    found = read_file(TRACES / "otel_genai_flat/strands_events.jsonl")
    tree = grow(found.spans)
    assert isinstance(tree, Tree)
    first, second = (one.call for one in tree.calls())  # a cycle of the agent's loop repeats its call's messages
    assert first is not None
    assert second is not None
    assert [said["content"] for said in first.messages] == ["You are boss.", "TOOL weather"]
    assert first.tool_calls[0]["toolUse"]["input"] == {"city": "Ghent"}
    assert [said["role"] for said in second.messages] == ["system", "user", "assistant", "tool"]
    assert (second.completion, second.finish_reason) == ("Answer 23678d to: rain", "end_turn")
    assert first.tools  # which the agent's span alone names
    assert second.tools


def test_a_text_that_is_json_stays_that_text(tmp_path: Path) -> None:
    for asked in ('[{"text": "a", "label": 1}]', '{"text": "a"}', '["a"]', "[]"):
        events = [event("gen_ai.user.message", content=asked), event("gen_ai.choice", message='{"content": "4"}')]
        assert chat({}, tmp_path, events=events).call.messages[0]["content"] == asked


def test_no_tools_are_offered_by_an_empty_list(tmp_path: Path) -> None:
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(PARTS)}
    for listed, offered in (("[]", False), (json.dumps([{"name": "add"}]), True)):
        assert chat({**attributes, "gen_ai.tool.definitions": listed}, tmp_path).call.tools is offered


def test_what_litellms_cache_answered_is_told(tmp_path: Path) -> None:
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(PARTS)}
    for hit, cached in ((True, True), ("False", False), ("", None)):
        assert chat({**attributes, "litellm.cache_hit": hit}, tmp_path).call.cached is cached


@pytest.mark.parametrize(
    "thought",
    [
        {"summary": [{"type": "summary_text", "text": "two and two"}]},
        {"summary": [], "content": [{"type": "reasoning_text", "text": "two and two"}]},
    ],
)
def test_reasoning_among_a_responses_items_is_hidden_reasoning(thought: dict[str, Any], tmp_path: Path) -> None:
    items = [{"type": "reasoning", **thought}, {"type": "message", "role": "assistant", "content": "4"}]
    response = {"object": "response", "status": "completed", "output": items}
    attributes = {
        "openinference.span.kind": "LLM",
        "input.value": json.dumps({"input": "2+2?"}),
        "output.value": json.dumps(response),
    }
    call = read_value(span(attributes), tmp_path).call
    assert (call.completion, call.reasoning) == ("4", "two and two")


def test_openllmetrys_older_attributes_may_lack_what_a_message_says(tmp_path: Path) -> None:
    attributes = {"llm.request.type": "chat", "gen_ai.prompt.0.role": "user", "gen_ai.completion.0.role": "assistant"}
    attributes["gen_ai.completion.0.finish_reason"] = "length"
    call = chat(attributes, tmp_path).call
    assert (call.messages, call.completion, call.finish_reason) == ((), None, "length")
    text = {"llm.request.type": "completion", "gen_ai.prompt.0.user": "Once", "gen_ai.completion.0.content": " upon"}
    call = chat(text, tmp_path).call
    assert (call.messages, call.completion) == (({"role": "user", "content": "Once"},), " upon")


def test_smolagents_messages_are_as_it_sends_them(tmp_path: Path) -> None:
    asked = [("system", "Act."), ("user", "2+2?"), ("tool-call", "add"), ("tool-response", "4"), ("user", "So?")]
    attributes = {"openinference.span.kind": "LLM"}
    for place, (role, content) in enumerate(asked):
        attributes[f"llm.input_messages.{place}.message.role"] = role
        attributes[f"llm.input_messages.{place}.message.content"] = content
    said = [(one["role"], one["content"]) for one in read_value(span(attributes), tmp_path).call.messages]
    assert said == [("system", "Act."), ("user", "2+2?"), ("assistant", "add"), ("user", "4\nSo?")]


def test_openinferences_whole_response_tells_what_its_attributes_leave_out(tmp_path: Path) -> None:
    response: dict[str, Any] = {
        "model": "m-2",
        "choices": [
            {
                "finish_reason": "length",
                "message": {"role": "assistant", "content": "4", "reasoning_content": "two and two"},
                "token_ids": [7],
                "logprobs": {"content": [{"token": "4", "logprob": -0.5}]},
            }
        ],
        "prompt_token_ids": [1, 2],
    }
    attributes = {
        "openinference.span.kind": "LLM",
        "input.value": json.dumps({"model": "m-1", "messages": ASKED, "previous_response_id": "r-1"}),
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "2+2?",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "4",
    }
    call = read_value(span({**attributes, "output.value": json.dumps(response)}), tmp_path).call
    assert (call.finish_reason, call.reasoning, call.model) == ("length", "two and two", "m-2")
    assert (call.prompt_ids, call.completion_ids, call.logprobs) == ((1, 2), (7,), (-0.5,))
    assert call.unseen  # what came before is known to the server alone
    failed = read_value(span(attributes), tmp_path).call
    assert (failed.completion, failed.model) == ("4", "m-1")
    response["choices"][0]["message"]["content"] = "something else"
    assert read_value(span({**attributes, "output.value": json.dumps(response)}), tmp_path).call.completion_ids is None


def test_openinferences_tool_calls_among_parts_keep_their_names(tmp_path: Path) -> None:
    place = "llm.output_messages.0.message."
    attributes = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "2+2?",
        f"{place}role": "assistant",
        f"{place}contents.0.message_content.type": "text",
        f"{place}contents.0.message_content.text": "I add. ",
        f"{place}contents.1.message_content.type": "tool_use",
        f"{place}tool_calls.0.tool_call.id": "c1",
        f"{place}tool_calls.0.tool_call.function.name": "add",
    }
    call = read_value(span(attributes), tmp_path).call
    assert (call.completion, call.tool_calls) == ("I add. ", ({"id": "c1", "name": "add"},))
