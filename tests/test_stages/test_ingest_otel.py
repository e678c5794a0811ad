"""OpenTelemetry spans: every convention's forms of messages, and every spelling of ids and times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_stages.ingest_kit import TRACES, parquet, read_file, read_value
from tests.test_stages.ingest_values import HEX, SPAN, VALUES
from tests.test_stages.otel_kit import ANSWER, ASKED, PARTS, chat, event, span

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
            event(
                "gen_ai.client.inference.operation.details",
                **{"gen_ai.input.messages": ASKED, "gen_ai.output.messages": ANSWER},
            )
        ],
        "attributes": {"gen_ai.operation.name": "chat"},
    },
    "an event for each message": {
        "events": [
            event("gen_ai.system.message", content="Be brief."),
            event("gen_ai.user.message", content='[{"type": "text", "text": "2+2?"}]'),
            event("gen_ai.choice", index=0, finish_reason="stop", message='{"role": "assistant", "content": "4"}'),
        ]
    },
    "events with whole lists": {
        "events": [
            event("gen_ai.content.prompt", **{"gen_ai.prompt": json.dumps(ASKED)}),
            event(
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
    found = chat(more.pop("attributes"), tmp_path, **more)
    wanted = ASKED[1:] if form == "messages in attributes" else ASKED
    assert found.spans[0].kind == "llm"
    assert [dict(said) for said in found.call.messages][-len(wanted) :] == wanted
    assert found.call.messages[0]["content"] == "Be brief."
    assert (found.call.completion, found.call.model, found.call.choices) == ("4", "m-1", 1)
    assert found.call.finish_reason == "stop"


def test_results_of_tools_are_said_by_the_tool_and_not_the_user(tmp_path: Path) -> None:
    asked = [*PARTS, {"role": "user", "parts": [{"type": "tool_call_response", "id": "c1", "response": "sunny"}]}]
    found = chat({"gen_ai.operation.name": "invoke_agent", "gen_ai.input.messages": json.dumps(asked)}, tmp_path)
    assert found.spans[0].inputs == "2+2?"
    call = chat({"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(asked)}, tmp_path).call
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
    call = chat(both, tmp_path).call
    assert (call.completion, call.reasoning, len(call.tool_calls), call.choices) == ("look", "hm", 1, 1)
    said[0] = {"role": "assistant", "parts": [{"type": "text", "content": "first"}]}
    both["gen_ai.output.messages"] = json.dumps(said[:2])
    assert (chat(both, tmp_path).call.completion, chat(both, tmp_path).call.choices) == ("first", 2)


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
        event("gen_ai.evaluation.result", **{"gen_ai.evaluation.name": "ok", "gen_ai.evaluation.score.label": "pass"}),
        event("gen_ai.evaluation.result", **{"gen_ai.evaluation.score.value": 0.25}),
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
    found = chat(ours, tmp_path)
    (one,) = found.spans
    assert (one.module, one.invocation_index, one.attempt, one.policy) == ("answer", 1, 2, "p")
    assert (found.call.prompt_ids, found.call.completion_ids) == ((1, 2), (3, 2))
    assert (found.call.logprobs, found.call.logprob_kind) == ((-0.5, -0.25), "processed")


def test_vercels_tools_speak_as_tools(tmp_path: Path) -> None:
    result = {"type": "tool-result", "toolCallId": "c", "toolName": "f", "output": {"type": "json", "value": {"a": 1}}}
    asked = [*ASKED, {"role": "tool", "content": [result]}]
    attributes = {"ai.operationId": "ai.generateText.doGenerate", "ai.prompt.messages": json.dumps(asked)}
    assert chat(attributes, tmp_path).call.messages[2] == {"role": "tool", "content": '{"a": 1}', "tool_call_id": "c"}
