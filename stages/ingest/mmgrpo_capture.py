"""Runs that a program captured itself, with `pipeline.capture`: rows in traces' normal form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, get_args

import pyarrow as pa

from schemas.capture import CALL_COLUMNS, CAPTURE, JSON_COLUMNS, MARK
from stages.ingest.messages import messages_of
from stages.ingest.normal import Call, Item, Kind, Refused, Score, Span
from stages.ingest.shape import Shape
from stages.ingest.values import floats, ids, integer, number

NAME = "mmgrpo_capture"
_CALL = frozenset(item.name for item in fields(Call)) & frozenset(CALL_COLUMNS)
_SPAN = frozenset(item.name for item in fields(Span)) & frozenset(CAPTURE.schema.names)


def recognises(value: Any, shape: Shape) -> bool:
    """A row with the mark of captured runs."""
    return isinstance(value, Mapping) and MARK in value and "record" in value


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """The span or the score of a row."""
    row = {name: held for name in CAPTURE.schema.names if (held := _READERS[name](value.get(name))) is not None}
    trace, name = row.get("trace"), row.get("name", "")
    if row.get(MARK) != CAPTURE.version:
        detail = f"captured rows of version {value[MARK]}; this release reads {CAPTURE.version}"
        yield Refused("unknown_version", detail, where, trace)
    elif not trace:
        yield Refused("no_trace_id", f"the row '{name}' has none", where)
    elif row.get("record") == "score":
        yield Score(trace, name, row.get("value"), row.get("span"), row.get("source"), where)
    elif not row.get("span"):
        yield Refused("no_span_id", f"the row '{name}' has none", where, trace)
    else:
        kind = row.pop("kind", None)
        made = {column: row[column] for column in row.keys() & _SPAN} | {"metadata": _object(row.get("metadata"))}
        call = _call(row) if kind == "llm" else None
        yield Span(**made, kind=kind if kind in get_args(Kind) else "other", call=call, where=where)


def _call(row: Mapping[str, Any]) -> Call | None:
    """The call of a row; None where its prompt was not kept."""
    messages = messages_of(row.get("messages"))
    if messages is None:
        return None
    made = {name: row[name] for name in row.keys() & _CALL}
    calls = made.get("tool_calls")
    return Call(**{**made, "messages": messages, "tool_calls": tuple(calls) if isinstance(calls, list) else ()})


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


_BY_TYPE: Mapping[pa.DataType, Callable[[Any], Any]] = {
    pa.string(): _text,
    pa.bool_(): _truth,
    pa.int32(): integer,
    pa.int64(): integer,
    pa.float64(): number,
    pa.list_(pa.int32()): ids,
    pa.list_(pa.float64()): floats,
}
_READERS = {item.name: _json if item.name in JSON_COLUMNS else _BY_TYPE[item.type] for item in CAPTURE.schema}
