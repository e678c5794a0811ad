"""Runs that a program captured itself, with `pipeline.capture`: rows in traces' normal form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from schemas.capture import CALL_COLUMNS, CAPTURE, JSON_COLUMNS, MARK
from stages.ingest.messages import messages_of
from stages.ingest.normal import Call, Item, Refused, Score, Span
from stages.ingest.read import Shape

NAME = "mmgrpo_capture"
_LISTS = ("prompt_ids", "completion_ids", "logprobs")
_CALL = frozenset(item.name for item in fields(Call)) & frozenset(CALL_COLUMNS)
_SPAN = frozenset(item.name for item in fields(Span)) & frozenset(CAPTURE.schema.names)


def recognises(value: Any, shape: Shape) -> bool:
    """A row with the mark of captured runs."""
    return isinstance(value, Mapping) and MARK in value and "record" in value


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """The span or the score of a row."""
    if value[MARK] != CAPTURE.version:
        detail = f"captured rows of version {value[MARK]}; this release reads {CAPTURE.version}"
        yield Refused("unknown_version", detail, where, value.get("trace"))
        return
    row = {name: _opened(name, item) for name, item in value.items() if item is not None}
    if row["record"] == "score":
        yield Score(row["trace"], row["name"], row.get("value"), row.get("span"), row.get("source"), where)
        return
    made = {name: row[name] for name in row.keys() & _SPAN}
    yield Span(**made, call=_call(row) if row.get("kind") == "llm" else None, where=where)


def _opened(name: str, value: Any) -> Any:
    return json.loads(value) if name in JSON_COLUMNS and isinstance(value, str) else value


def _call(row: Mapping[str, Any]) -> Call | None:
    """The call of a row; None where its prompt was not kept."""
    messages = messages_of(row.get("messages"))
    if messages is None:
        return None
    made = {name: row[name] for name in row.keys() & _CALL}
    made |= {name: tuple(made[name]) for name in (*_LISTS, "tool_calls") if name in made}
    return Call(**{**made, "messages": messages})
