"""Traces for the benchmark of ingest: OTLP-JSON as an instrumented program with two agents exports it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPANS = 5
"""Of a trace."""
TOPICS = (
    "a lost card",
    "the exchange rate",
    "a refund that is late",
    "the age limit",
    "a new PIN",
    "the app on a phone",
)


def write_traces(path: Path, spans: int) -> None:
    """Traces of five spans each, one a line."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(spans // SPANS):
            scope = {"scope": {"name": "app"}, "spans": _trace(number)}
            file.write(json.dumps({"resourceSpans": [{"scopeSpans": [scope]}]}) + "\n")


def _trace(number: int) -> list[dict[str, Any]]:
    question = (
        f"Customer {number // 4}: tell me about {TOPICS[number % len(TOPICS)]}, please, and what I have to do now."
    )
    begin = 1_790_000_000_000_000_000 + number * 10**9
    evaluation = {"gen_ai.evaluation.name": "right", "gen_ai.evaluation.score.value": float(number % 3 == 0)}
    root = _span(number, 0, None, "invoke_workflow", begin, {"input.value": json.dumps({"question": question})})
    root["events"] = [{"name": "gen_ai.evaluation.result", "attributes": _attributes(evaluation)}]
    found = [root]
    for place, (agent, order, answer) in enumerate(
        (
            ("summarizer", "Summarize the customer's question.", question[12:60]),
            ("classifier", "Name the intent.", "card_arrival"),
        )
    ):
        asked = [("system", order), ("user", question)]
        call = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "a-model",
            "gen_ai.request.temperature": 0.7,
            "gen_ai.input.messages": json.dumps([_said(role, text) for role, text in asked]),
            "gen_ai.output.messages": json.dumps([_said("assistant", answer)]),
            "gen_ai.response.finish_reasons": ["stop"],
        }
        at = begin + (place + 1) * 10**8
        naming = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent}
        found.append(_span(number, 1 + 2 * place, 0, f"invoke_agent {agent}", at, naming))
        found.append(_span(number, 2 + 2 * place, 1 + 2 * place, "chat a-model", at + 1000, call))
    return found


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _span(
    number: int, place: int, parent: int | None, name: str, begin: int, attributes: dict[str, Any]
) -> dict[str, Any]:
    above = {} if parent is None else {"parentSpanId": f"{number * SPANS + parent + 1:016x}"}
    return {
        "traceId": f"{number + 1:032x}",
        "spanId": f"{number * SPANS + place + 1:016x}",
        **above,
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(begin),
        "endTimeUnixNano": str(begin + 5 * 10**7),
        "attributes": _attributes(attributes),
        "status": {},
    }


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    def typed(value: Any) -> dict[str, Any]:
        if isinstance(value, list):
            return {"arrayValue": {"values": [typed(item) for item in value]}}
        return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}

    return [{"key": key, "value": typed(value)} for key, value in values.items()]
