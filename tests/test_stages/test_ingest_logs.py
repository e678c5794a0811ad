"""Calls whose messages are in log records: joined to their spans, whatever the files and the order."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from stages.ingest.normal import Span
from stages.ingest.patterns import BUILT_IN
from stages.ingest.pseudonyms import numbered
from stages.ingest.redact import Redactor
from stages.ingest.spool import Spool
from stages.ingest.tree import Tree, grow, once
from tests.test_stages.ingest_kit import Held, read_file
from tests.test_stages.ingest_values import HEX, SPAN

ROOT = "00f067aa0ba902b7"
START = 1_767_323_045_000_000_000


def attribute(key: str, value: Any) -> dict[str, Any]:
    kind = {str: "stringValue", float: "doubleValue", int: "intValue"}[type(value)]
    return {"key": key, "value": {kind: value}}


def typed(value: Any) -> dict[str, Any]:
    """A value as OTLP has it in a body."""
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": typed(item)} for key, item in value.items()]}}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


def record(name: str, body: Any, place: int, **more: Any) -> dict[str, Any]:
    time = str(START + place)
    made = {"timeUnixNano": time, "eventName": name, "body": typed(body), "traceId": HEX, "spanId": SPAN}
    return made | {"attributes": [attribute("gen_ai.system", "openai")]} | more


def spans() -> list[dict[str, Any]]:
    """A root, and a call that does not say what was said."""
    settings = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m-1", "gen_ai.request.temperature": 0.5}
    call: dict[str, Any] = {"traceId": HEX, "spanId": SPAN, "parentSpanId": ROOT, "name": "chat m-1"}
    call |= {"startTimeUnixNano": str(START), "endTimeUnixNano": str(START + 100)}
    call["attributes"] = [attribute(*item) for item in settings.items()]
    return [{"traceId": HEX, "spanId": ROOT, "name": "app", "startTimeUnixNano": str(START - 5)}, call]


RECORDS = [
    record("gen_ai.system.message", {"content": "Be brief."}, 1),
    record("gen_ai.user.message", {"content": "2+2?"}, 2),
    record("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "4"}}, 3),
    record("http.request", {"content": "GET /"}, 4),
]


def of_logs(*records: Any) -> dict[str, Any]:
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}


def of_spans() -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans()}]}]}


def read(tmp_path: Path, *values: Any) -> Held:
    path = tmp_path / "lines"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return read_file(path)


def call_of(found: Held) -> Span:
    assert not found.refused, found.refused
    tree = grow(found.spans)
    assert isinstance(tree, Tree)
    (call,) = tree.calls()
    return call


@pytest.mark.parametrize("seed", range(6))
def test_messages_in_log_records_are_the_call_of_their_span(seed: int, tmp_path: Path) -> None:
    values = [of_spans(), *(of_logs(item) for item in RECORDS), of_logs(*RECORDS)]
    random.Random(seed).shuffle(values)
    span = call_of(read(tmp_path, *values))
    assert span.call is not None
    assert [said["content"] for said in span.call.messages] == ["Be brief.", "2+2?"]
    assert (span.call.completion, span.call.finish_reason) == ("4", "stop")
    assert (span.call.model, span.call.temperature) == ("m-1", 0.5)
    assert (span.parent, span.name, span.start) == (ROOT, "chat m-1", START)


def test_an_event_of_the_whole_call_is_that_call(tmp_path: Path) -> None:
    told = {
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "2+2?"}]}]),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "4"}]}]),
        "gen_ai.request.model": "m-1",
        "mmgrpo.module": "sum",
    }
    event = record("gen_ai.client.inference.operation.details", "", 9)
    event["attributes"] = [attribute(*item) for item in told.items()]
    span = call_of(read(tmp_path, of_logs(event), of_spans()))
    assert span.call is not None
    assert (span.call.completion, span.module, span.parent) == ("4", "sum", ROOT)


def test_log_records_without_spans_are_calls_in_the_order_of_their_times(tmp_path: Path) -> None:
    second = [{**item, "spanId": ROOT, "timeUnixNano": str(START + 50 + n)} for n, item in enumerate(RECORDS)]
    tree = grow(read(tmp_path, of_logs(*second), of_logs(*RECORDS)).spans)
    assert isinstance(tree, Tree)
    assert [span.span for span in tree.calls()] == [SPAN, ROOT]
    assert tree.root is None


def test_an_evaluation_in_a_log_record_is_a_score(tmp_path: Path) -> None:
    event = record("gen_ai.evaluation.result", {}, 5, spanId="")
    event["attributes"] = [
        attribute("gen_ai.evaluation.name", "right"),
        attribute("gen_ai.evaluation.score.value", 0.5),
    ]
    found = read(tmp_path, of_logs(event, *RECORDS))
    assert (found.score("right").value, found.score("right").span) == (0.5, None)


def test_records_as_the_sdk_writes_them_are_read_too(tmp_path: Path) -> None:
    lines = [
        {
            "body": {"content": "2+2?"},
            "severity_number": None,
            "attributes": {"gen_ai.system": "openai", "event.name": "gen_ai.user.message"},
            "timestamp": "2026-01-02T03:04:05.000001Z",
            "trace_id": f"0x{HEX}",
            "span_id": f"0x{SPAN}",
            "trace_flags": 1,
        },
        {
            "body": {"finish_reason": "stop", "message": {"content": "4"}},
            "severity_text": None,
            "attributes": {},
            "event_name": "gen_ai.choice",
            "timestamp": "2026-01-02T03:04:06Z",
            "trace_id": f"0x{HEX}",
            "span_id": f"0x{SPAN}",
        },
    ]
    found = read(tmp_path, *lines)
    assert found.format == "otel_spans"
    call = call_of(found).call
    assert call is not None
    assert ([said["content"] for said in call.messages], call.completion) == (["2+2?"], "4")


def test_a_body_that_is_the_json_of_a_message_is_that_message(tmp_path: Path) -> None:
    said = {
        "gen_ai.system.message": {"role": "system", "content": "Be brief."},
        "gen_ai.user.message": {"role": "user", "content": '{"two": 2}'},
        "gen_ai.choice": {"message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"},
    }
    records = [
        {
            "traceId": HEX,
            "spanId": SPAN,
            "timeUnixNano": str(place),
            "body": {"stringValue": json.dumps(body)},
            "attributes": [{"key": "event.name", "value": {"stringValue": name}}],
        }
        for place, (name, body) in enumerate(said.items())
    ]
    records[1]["body"] = {"stringValue": '{"two": 2}'}  # a text that is JSON, but of no message
    path = tmp_path / "logs.json"
    path.write_text(json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}))
    (only,) = once(read_file(path).spans).values()
    assert only.call is not None
    assert [one["content"] for one in only.call.messages] == ["Be brief.", '{"two": 2}']
    assert (only.call.completion, only.call.finish_reason) == ("4", "stop")


def test_events_without_ids_are_refused_and_other_records_are_passed_over(tmp_path: Path) -> None:
    lost = [{**RECORDS[1], "traceId": ""}, {**RECORDS[1], "spanId": None}, {"body": typed("hello")}, 3]
    found = read(tmp_path, of_logs(*lost, *RECORDS))
    assert [item.reason for item in found.refused] == ["no_trace_id", "no_span_id", "broken"]
    assert len(found.spans) == 3


def test_what_log_records_say_is_redacted_and_spooled_like_the_rest(tmp_path: Path) -> None:
    said = record("gen_ai.user.message", {"content": "I am ada@example.org"}, 2)
    redactor = Redactor([BUILT_IN["email"]], None, lambda ids: None)
    spool = Spool(tmp_path / "spool")
    for item in read(tmp_path, of_logs(RECORDS[0], said, RECORDS[2]), of_spans()).spans:
        spool.add(redactor.item(item), "otlp_json")
    trace = numbered(*spool.traces())
    assert b"ada@" not in b"".join(path.read_bytes() for path in (tmp_path / "spool").iterdir())
    call = once(trace.spans)[SPAN].call
    assert call is not None
    assert [said["content"] for said in call.messages] == ["Be brief.", "I am <EMAIL_1>"]
    assert call.redacted
