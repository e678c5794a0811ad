"""One call, as other SDKs, other versions and other tools log it: it stays the same call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_stages.ingest_kit import read_value
from tests.test_stages.ingest_values import CHAT, COMPLETION, HEX, RUN, SAID, SPAN, VALUES

USER = CHAT[1:]


def text(value: str) -> dict[str, Any]:
    return {"stringValue": value}


def typed(value: dict[str, Any]) -> dict[str, Any]:
    return {"kvlistValue": {"values": [{"key": key, "value": item} for key, item in value.items()]}}


def listed(*values: Any) -> dict[str, Any]:
    return {"arrayValue": {"values": list(values)}}


def message(role: str, said: str) -> dict[str, Any]:
    return typed({"role": text(role), "parts": listed(typed({"type": text("text"), "content": text(said)}))})


def otlp(attributes: Any) -> dict[str, Any]:
    span = {"traceId": HEX, "spanId": SPAN, "name": "chat", "attributes": attributes}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def span(**attributes: Any) -> dict[str, Any]:
    held = {name.replace("__", "."): value for name, value in attributes.items()}
    return {"trace_id": HEX, "span_id": SPAN, "name": "chat", "attributes": held}


STRUCTURED = {
    "gen_ai.operation.name": text("chat"),
    "gen_ai.input.messages": listed(message("user", "2+2?")),
    "gen_ai.output.messages": listed(message("assistant", "4")),
}
IO = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps(USER)}
IO |= {"gen_ai.output.messages": json.dumps([SAID])}
LLM = {"openinference.span.kind": "LLM"}
CALLS: dict[str, Any] = {
    "OTLP with structured messages": otlp([{"key": key, "value": value} for key, value in STRUCTURED.items()]),
    "OTLP with a dictionary of typed values": otlp({name: text(value) for name, value in IO.items()}),
    "OTLP with a plain dictionary": otlp(IO),
    "OTLP with attributes that say nothing": otlp(
        [{"key": "x"}, {"key": "y", "value": None}, *({"key": key, "value": text(value)} for key, value in IO.items())]
    ),
    "OpenInference, input and output only": span(
        **LLM, input__value=json.dumps({"messages": USER}), output__value=json.dumps(COMPLETION)
    ),
    "OpenInference, texts only": span(**LLM, input__value="2+2?", output__value="4"),
    "OpenInference, kind in lower case": span(
        **{"openinference.span.kind": "llm", "input.value": "2+2?", "output.value": "4"}
    ),
    "OpenInference's text completion": span(
        **LLM, llm__prompts__0__prompt__text="2+2?", llm__choices__0__completion__text="4"
    ),
    "OpenInference's text completion of old": span(**LLM, llm__prompts=["2+2?"], output__value="4"),
    "OpenLLMetry's text completion": span(
        **{"llm.request.type": "completion", "gen_ai.prompt.0.content": "2+2?", "gen_ai.completion.0.content": "4"}
    ),
    "OpenLLMetry before the conventions": span(
        **{
            "llm.request.type": "chat",
            "llm.prompts.0.role": "user",
            "llm.prompts.0.content": "2+2?",
            "llm.completions.0.content": "4",
        }
    ),
    "LangSmith's prompts": {**RUN, "inputs": {"prompts": ["2+2?"]}, "outputs": {"generations": [[{"text": "4"}]]}},
    "LangSmith's messages in a batch": {**RUN, "inputs": {"messages": [USER]}},
    "a pair of Anthropic's API": {
        "request": {"messages": USER, "max_tokens": 5},
        "response": {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "4"}]},
    },
    "a pair of Gemini's API": {
        "request": {"messages": USER},
        "response": {"candidates": [{"content": {"role": "model", "parts": [{"text": "4"}]}, "finishReason": "STOP"}]},
    },
    "a pair in texts of JSON": {"request": json.dumps({"messages": USER}), "response": json.dumps(COMPLETION)},
    "a chat with parts": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "4"}]},
        ]
    },
    "a chat in a text of JSON": {"messages": json.dumps([*USER, SAID])},
    "a chat and its output": {"messages": USER, "output": "4"},
    "a chat whose text is in UTF-16 halves": {"messages": [*USER, SAID], "id": "\ud83d"},
}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_call_is_the_same_however_it_was_logged(name: str, tmp_path: Path) -> None:
    found = read_value(CALLS[name], tmp_path)
    assert not found.refused
    assert [(said["role"], said["content"]) for said in found.call.messages] == [("user", "2+2?")]
    assert (found.call.completion, found.call.choices) == ("4", 1)


@pytest.mark.parametrize(
    "name", sorted(name for name in VALUES if name.startswith("openai_chat: ") and "id and score" not in name)
)
def test_every_form_of_a_chat_has_its_answer(name: str, tmp_path: Path) -> None:
    call = read_value(VALUES[name][1], tmp_path).call
    assert (call.messages[-1]["content"], call.completion) == ("2+2?", "4")


@pytest.mark.parametrize(
    ("time", "nanoseconds"),
    [
        (1_767_323_045, 1_767_323_045_000_000_000),
        (1_767_323_045.5, 1_767_323_045_500_000_000),
        (1_767_323_045_000, 1_767_323_045_000_000_000),
        (1_767_323_045_000_000, 1_767_323_045_000_000_000),
        ("1767323045000000000", 1_767_323_045_000_000_000),
        ("1767323045.25", 1_767_323_045_250_000_000),
        ("2026-01-02T03:04:05Z", 1_767_323_045_000_000_000),
        ("2026-01-02T05:04:05.5+02:00", 1_767_323_045_500_000_000),
        ("2026-01-01T22:34:05-0430", 1_767_323_045_000_000_000),
        ("2026-01-02 03:04:05.123456", 1_767_323_045_123_456_000),
        ("2026-01-02 03:04:05.000 UTC", 1_767_323_045_000_000_000),
        ("2026-01-02T03:04:05.000000000Z", 1_767_323_045_000_000_000),
        ([1_767_323_045, 5], 1_767_323_045_000_000_005),
        ("soon", None),
        (-5, None),
        (None, None),
    ],
)
def test_a_time_is_the_same_in_every_unit(time: Any, nanoseconds: int | None, tmp_path: Path) -> None:
    (found,) = read_value({**span(), "start_time": time}, tmp_path).spans
    assert found.start == nanoseconds


@pytest.mark.parametrize(
    ("logged", "value"),
    [(1, 1.0), ("0.5", 0.5), (True, 1.0), ("true", 1.0), ("no", 0.0), ("PASS", 1.0), (None, None), ("fine", None)],
)
def test_a_score_is_a_number_however_it_was_logged(logged: Any, value: float | None, tmp_path: Path) -> None:
    chat = {"id": "c", "messages": [*USER, SAID], "score": logged}
    assert [score.value for score in read_value(chat, tmp_path).scores] == [value]
    row = {"trace_id": "c", "name": "right", "score": logged}
    assert [score.value for score in read_value(row, tmp_path).scores] == [value]
    run = {**RUN, "feedback": [{"key": "right", "score": logged}], "feedback_stats": None}
    assert [score.value for score in read_value(run, tmp_path).scores] == [value]
