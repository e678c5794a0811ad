"""OpenTelemetry spans: every convention's forms of messages, and every spelling of ids and times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stages.ingest.tree import Tree, grow
from tests.test_stages.ingest_kit import TRACES, Held, parquet, read_file, read_value
from tests.test_stages.ingest_values import HEX, SPAN, VALUES

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
PARTS = [{"role": "user", "parts": [{"type": "text", "content": "2+2?"}]}]
ANSWER = [{"role": "assistant", "parts": [{"type": "text", "content": "4"}], "finish_reason": "stop"}]


def span(attributes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"trace_id": HEX, "span_id": SPAN, "name": "chat m", "start_time": 1, "attributes": attributes, **more}


def _chat(attributes: dict[str, Any], tmp_path: Path, **more: Any) -> Held:
    return read_value(span({"gen_ai.request.model": "m-1", **attributes}, **more), tmp_path)


def _event(name: str, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "attributes": attributes}


FORMS: dict[str, dict[str, Any]] = {
    "messages in attributes": {
        "attributes": {
            "gen_ai.operation.name": "chat",
            "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
            "gen_ai.input.messages": json.dumps(PARTS),
            "gen_ai.output.messages": json.dumps(ANSWER),
        }
    },
    "messages in one event": {
        "events": [
            _event(
                "gen_ai.client.inference.operation.details",
                **{"gen_ai.input.messages": ASKED, "gen_ai.output.messages": ANSWER},
            )
        ],
        "attributes": {"gen_ai.operation.name": "chat"},
    },
    "an event for each message": {
        "events": [
            _event("gen_ai.system.message", content="Be brief."),
            _event("gen_ai.user.message", content='[{"type": "text", "text": "2+2?"}]'),
            _event("gen_ai.choice", index=0, finish_reason="stop", message='{"role": "assistant", "content": "4"}'),
        ]
    },
    "events with whole lists": {
        "events": [
            _event("gen_ai.content.prompt", **{"gen_ai.prompt": json.dumps(ASKED)}),
            _event(
                "gen_ai.content.completion",
                **{"gen_ai.completion": json.dumps([{"role": "assistant", "content": "4"}])},
            ),
        ],
        "attributes": {"gen_ai.response.finish_reasons": ["stop"]},
    },
    "Logfire's list of events": {
        "attributes": {
            "events": json.dumps(
                [
                    {"event.name": "gen_ai.system.message", "content": "Be brief.", "role": "system"},
                    {"event.name": "gen_ai.user.message", "content": "2+2?", "role": "user"},
                    {
                        "event.name": "gen_ai.choice",
                        "index": 0,
                        "message": {"role": "assistant", "content": "4"},
                        "finish_reason": "stop",
                    },
                ]
            )
        }
    },
    "OpenLLMetry's attribute for each message": {
        "attributes": {
            "llm.request.type": "chat",
            "gen_ai.prompt.0.role": "system",
            "gen_ai.prompt.0.content": "Be brief.",
            "gen_ai.prompt.1.role": "user",
            "gen_ai.prompt.1.content": "2+2?",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": "4",
            "gen_ai.completion.0.finish_reason": "stop",
        }
    },
    "OpenInference's attribute for each message": {
        "attributes": {
            "openinference.span.kind": "LLM",
            "llm.finish_reason": "stop",
            "llm.model_name": "m-1",
            "llm.input_messages.0.message.role": "system",
            "llm.input_messages.0.message.content": "Be brief.",
            "llm.input_messages.1.message.role": "user",
            "llm.input_messages.1.message.contents.0.message_content.type": "text",
            "llm.input_messages.1.message.contents.0.message_content.text": "2+2?",
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": "4",
        }
    },
    "Phoenix's nested attributes": {
        "span_kind": "LLM",
        "attributes": {
            "llm": {
                "model_name": "m-1",
                "finish_reason": "stop",
                "input_messages": [{"message": said} for said in ASKED],
                "output_messages": [{"message": {"role": "assistant", "content": "4"}}],
            }
        },
    },
    "Vercel's SDK": {
        "attributes": {
            "ai.operationId": "ai.generateText.doGenerate",
            "ai.model.id": "m-1",
            "ai.prompt.messages": json.dumps(
                [ASKED[0], {"role": "user", "content": [{"type": "text", "text": "2+2?"}]}]
            ),
            "ai.response.text": "4",
            "ai.response.finishReason": "stop",
        }
    },
    "Vercel's SDK before 4": {
        "attributes": {
            "ai.operationId": "ai.streamText.doStream",
            "ai.model.id": "m-1",
            "ai.prompt.messages": json.dumps(ASKED),
            "ai.result.text": "4",
            "ai.finishReason": "stop",
        }
    },
}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_each_form_of_messages_is_the_same_call(form: str, tmp_path: Path) -> None:
    more = {"attributes": {}, **FORMS[form]}
    found = _chat(more.pop("attributes"), tmp_path, **more)
    wanted = ASKED[1:] if form == "messages in attributes" else ASKED
    assert found.spans[0].kind == "llm"
    assert [dict(said) for said in found.call.messages][-len(wanted) :] == wanted
    assert found.call.messages[0]["content"] == "Be brief."
    assert (found.call.completion, found.call.model, found.call.choices) == ("4", "m-1", 1)
    assert found.call.finish_reason == "stop"


def test_results_of_tools_are_said_by_the_tool_and_not_the_user(tmp_path: Path) -> None:
    asked = [*PARTS, {"role": "user", "parts": [{"type": "tool_call_response", "id": "c1", "response": "sunny"}]}]
    found = _chat({"gen_ai.operation.name": "invoke_agent", "gen_ai.input.messages": json.dumps(asked)}, tmp_path)
    assert found.spans[0].inputs == "2+2?"
    call = _chat({"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(asked)}, tmp_path).call
    assert call.messages[1] == {"role": "tool", "content": "sunny", "tool_call_id": "c1"}
    assert read_file(TRACES / "otel_genai_flat/pydantic_ai_live_spans.json").root.inputs.startswith(
        "What's the weather"
    )


def test_text_and_tool_calls_in_messages_of_their_own_are_one_answer(tmp_path: Path) -> None:
    said = [
        {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}]},
        {"role": "assistant", "parts": [{"type": "text", "content": "look"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "f", "arguments": {}}]},
    ]
    both = {"gen_ai.input.messages": json.dumps(PARTS), "gen_ai.output.messages": json.dumps(said)}
    call = _chat(both, tmp_path).call
    assert (call.completion, call.reasoning, len(call.tool_calls), call.choices) == ("look", "hm", 1, 1)
    said[0] = {"role": "assistant", "parts": [{"type": "text", "content": "first"}]}
    both["gen_ai.output.messages"] = json.dumps(said[:2])
    assert (_chat(both, tmp_path).call.completion, _chat(both, tmp_path).call.choices) == ("first", 2)


@pytest.mark.parametrize(
    ("trace", "own"),
    [
        (HEX, SPAN),
        (HEX.upper(), SPAN.upper()),
        (f"0x{HEX}", f"0x{SPAN}"),
        ("CvdlGRbNQ92ESOshHIAxnA==", "t61rcWkgMzE="),
    ],
    ids=["hex", "upper", "0x", "base64"],
)
def test_ids_are_the_same_however_they_are_spelt(trace: Any, own: Any, tmp_path: Path) -> None:
    (found,) = read_value({"trace_id": trace, "span_id": own, "parent_id": own, "attributes": {}}, tmp_path).spans
    assert (found.trace, found.span, found.parent) == (HEX, SPAN, SPAN)


def test_ids_that_are_numbers_are_spelt_in_hex(tmp_path: Path) -> None:
    number = int(SPAN, 16)
    (found,) = read_value({"trace_id": number, "span_id": number, "parent_id": 0, "attributes": {}}, tmp_path).spans
    assert (found.trace, found.span, found.parent) == (SPAN.zfill(32), SPAN, None)


@pytest.mark.parametrize(
    "time",
    [
        1767323045123000000,
        "1767323045123000000",
        1767323045123000,
        1767323045123,
        1767323045.123,
        "2026-01-02T03:04:05.123Z",
        "2026-01-02 03:04:05.123000",
        "2026-01-02T05:04:05.123+02:00",
        [1767323045, 123000000],
    ],
)
def test_times_are_the_same_however_they_are_spelt(time: Any, tmp_path: Path) -> None:
    (found,) = read_value({"trace_id": HEX, "span_id": SPAN, "attributes": {}, "start_time": time}, tmp_path).spans
    assert found.start == 1767323045123000000


@pytest.mark.parametrize("time", ["soon", -1, 0, True, {}, [], [1], "9" * 400, 1e300, float("inf"), None])
def test_what_is_no_time_is_none(time: Any, tmp_path: Path) -> None:
    (found,) = read_value({"trace_id": HEX, "span_id": SPAN, "attributes": {}, "start_time": time}, tmp_path).spans
    assert found.start is None


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
    call = _chat({"gen_ai.input.messages": json.dumps(PARTS), "gen_ai.output.messages": said}, tmp_path).call
    assert (call.messages[0]["content"], call.completion) == ("2+2?", None)


def test_what_a_model_said_is_its_answer_whatever_role_it_is_given(tmp_path: Path) -> None:
    said = json.dumps([{**ANSWER[0], "role": "unknown"}])
    call = _chat({"gen_ai.input.messages": json.dumps(PARTS), "gen_ai.output.messages": said}, tmp_path).call
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
        events = [_event("gen_ai.user.message", content=asked), _event("gen_ai.choice", message='{"content": "4"}')]
        assert _chat({}, tmp_path, events=events).call.messages[0]["content"] == asked


def test_no_tools_are_offered_by_an_empty_list(tmp_path: Path) -> None:
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(PARTS)}
    for listed, offered in (("[]", False), (json.dumps([{"name": "add"}]), True)):
        assert _chat({**attributes, "gen_ai.tool.definitions": listed}, tmp_path).call.tools is offered


def test_what_litellms_cache_answered_is_told(tmp_path: Path) -> None:
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(PARTS)}
    for hit, cached in ((True, True), ("False", False), ("", None)):
        assert _chat({**attributes, "litellm.cache_hit": hit}, tmp_path).call.cached is cached


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
    call = _chat(attributes, tmp_path).call
    assert (call.messages, call.completion, call.finish_reason) == ((), None, "length")
    text = {"llm.request.type": "completion", "gen_ai.prompt.0.user": "Once", "gen_ai.completion.0.content": " upon"}
    call = _chat(text, tmp_path).call
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
    response = {
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
    response["choices"][0]["message"]["content"] = "something else"  # type: ignore[index]
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


def test_layouts_of_sdks_are_the_same_span(tmp_path: Path) -> None:
    attributes = {"gen_ai.operation.name": "chat"}
    context = {"trace_id": f"0x{HEX}", "span_id": f"0x{SPAN}", "trace_state": "[]"}
    layouts = [
        span(attributes),
        {
            "context": context,
            "name": "chat m",
            "attributes": attributes,
            "start_time": "1970-01-01T00:00:00.000000001Z",
        },
        {
            "spanContext": {"traceId": HEX, "spanId": SPAN},
            "name": "chat m",
            "attributes": attributes,
            "startTime": [0, 1],
        },
        {"spans": [span(attributes)], "span_count": 1},
        {
            "trace_id": HEX,
            "span_id": SPAN,
            "span_name": "chat m",
            "attributes": json.dumps(attributes),
            "start_timestamp": 1,
        },
    ]
    found = [read_value(layout, tmp_path).spans[0] for layout in layouts]
    assert {(one.trace, one.span, one.name, one.kind) for one in found} == {(HEX, SPAN, "chat m", "llm")}


def test_phoenix_tables_have_columns_for_attributes_and_evaluations(tmp_path: Path) -> None:
    row = VALUES["otel_spans: Phoenix's columns"][1]
    found = read_file(
        parquet(tmp_path / "spans.parquet", [row, {**row, "context.span_id": "1" * 16, "parent_id": SPAN}])
    )
    assert [call.completion for call in found.calls] == ["4", "4"]
    assert [(score.name, score.value, score.span) for score in found.scores] == [
        ("quality", 1.0, None),
        ("quality", 1.0, "1" * 16),
    ]


TYPES = ("array_value", "bool_value", "bytes_value", "double_value", "int_value", "kvlist_value", "string_value")


def test_a_page_of_phoenixs_api_holds_spans_in_either_form(tmp_path: Path) -> None:
    attributes: dict[str, Any] = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "2+2?",
        "llm.token_count.total": 3,
        "metadata.langgraph_node": "adder",
    }
    own = {"name": "ask", "context": {"trace_id": HEX, "span_id": SPAN}, "parent_id": None, "start_time": 1}
    typed = [
        {
            "key": name,
            "value": {**dict.fromkeys(TYPES), "int_value" if isinstance(value, int) else "string_value": value},
        }
        for name, value in attributes.items()
    ]
    otlp = {"name": "ask", "trace_id": HEX, "span_id": SPAN, "start_time_unix_nano": 1, "attributes": typed}
    for row in ({**own, "span_kind": "LLM", "attributes": attributes}, otlp):
        found = read_value({"data": [row], "next_cursor": None}, tmp_path)
        assert found.format == "otel_spans"
        assert found.call.messages == ({"role": "user", "content": "2+2?"},)
        assert found.root.agent == "adder"


def test_annotations_beside_a_span_are_scores(tmp_path: Path) -> None:
    notes = [
        {"name": "correct", "annotator_kind": "HUMAN", "result": {"score": 1, "label": "yes"}},
        {"name": "tone", "result": {"score": None}},
    ]
    found = read_value(span({}, parent_id="1" * 16, annotations=notes), tmp_path)
    assert [(score.name, score.value, score.source) for score in found.scores] == [
        ("correct", 1.0, "HUMAN"),
        ("tone", None, None),
    ]


def test_evaluation_events_may_have_a_label_alone(tmp_path: Path) -> None:
    events = [
        _event("gen_ai.evaluation.result", **{"gen_ai.evaluation.name": "ok", "gen_ai.evaluation.score.label": "pass"}),
        _event("gen_ai.evaluation.result", **{"gen_ai.evaluation.score.value": 0.25}),
    ]
    found = read_value(span({}, events=events), tmp_path)
    assert {score.name: score.value for score in found.scores} == {"ok": 1.0, "evaluation": 0.25}


def test_logfires_records_of_a_start_are_no_spans(tmp_path: Path) -> None:
    assert read_value(span({}, kind="pending_span"), tmp_path).spans == []


def test_our_attributes_are_kept_in_every_layout(tmp_path: Path) -> None:
    ours = {
        "mmgrpo.module": "answer",
        "mmgrpo.invocation_index": 1,
        "mmgrpo.attempt": "2",
        "mmgrpo.policy": "p",
        "mmgrpo.prompt_ids": [1, 2],
        "mmgrpo.completion_ids": "[3, 2]",
        "mmgrpo.sampling_logprobs": [-0.5, -0.25],
        "mmgrpo.logprob_kind": "processed",
        "gen_ai.input.messages": json.dumps(PARTS),
        "gen_ai.output.messages": json.dumps(ANSWER),
    }
    found = _chat(ours, tmp_path)
    (one,) = found.spans
    assert (one.module, one.invocation_index, one.attempt, one.policy) == ("answer", 1, 2, "p")
    assert (found.call.prompt_ids, found.call.completion_ids) == ((1, 2), (3, 2))
    assert (found.call.logprobs, found.call.logprob_kind) == ((-0.5, -0.25), "processed")


def test_vercels_tools_speak_as_tools(tmp_path: Path) -> None:
    result = {"type": "tool-result", "toolCallId": "c", "toolName": "f", "output": {"type": "json", "value": {"a": 1}}}
    asked = [*ASKED, {"role": "tool", "content": [result]}]
    attributes = {"ai.operationId": "ai.generateText.doGenerate", "ai.prompt.messages": json.dumps(asked)}
    assert _chat(attributes, tmp_path).call.messages[2] == {"role": "tool", "content": '{"a": 1}', "tool_call_id": "c"}
