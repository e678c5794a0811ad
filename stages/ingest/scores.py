"""Scores beside traces: rows `{trace_id, name, score}`, and annotations of spans, in JSON, JSON lines or Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.normal import Item, Refused, Score
from stages.ingest.shape import Shape
from stages.ingest.values import identity, judged, text

NAME = "scores"
SCORES = ("score", "reward", "resolved")
"""Fields that hold a score by themselves."""
_VALUES = (*SCORES, "value", "result.score")
_TRACES = ("trace_id", "traceId", "context.trace_id")
_SPANS = ("span_id", "spanId", "context.span_id", "run_id")
_NAMES = ("name", "key", "annotation_name", "metric")
_SOURCES = ("source", "annotator_kind", "evaluator")
_NOT = (
    "attributes",
    "messages",
    "inputs",
    "input",
    "spans",
    "data_type",
    "dataType",
    "start_time",
    "startTime",
    "traj",
)
"""Fields of traces themselves."""


def recognises(value: Any, shape: Shape) -> bool:
    """A row with the id of a trace or a span, and a score; or an object of them by `scores`."""
    if not isinstance(value, Mapping):
        return False
    if set(value) == {"scores"} and isinstance(value["scores"], list):
        return bool(value["scores"]) and recognises(value["scores"][0], shape)
    known = any(name in value for name in (*_TRACES, *_SPANS)) and any(name in value for name in _VALUES)
    return known and not any(name in value for name in _NOT) and "run_type" not in value


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """One score, or each of an object's."""
    if set(value) == {"scores"}:
        for row in value["scores"]:
            yield from read(row, where)
        return
    trace, span = identity(_first(value, _TRACES)), identity(_first(value, _SPANS))
    if trace is None:
        yield Refused("no_trace_id", f"the score has none; its span is {span}", where)
        return
    field = next((name for name in _VALUES if name in value), None)
    if field is None:
        yield Refused("no_score", f"the row has none of {', '.join(_VALUES)}", where, trace)
        return
    name = text(_first(value, _NAMES)) or (field if field in SCORES else "score")
    yield Score(trace, name, judged(value[field]), span, text(_first(value, _SOURCES)), where)


def named_scores(value: Mapping[str, Any], trace: str, where: str) -> Iterator[Item]:
    """Scores by name that a row holds in `scores`."""
    held = value.get("scores")
    for name, found in held.items() if isinstance(held, Mapping) else ():
        yield Score(trace, str(name), judged(found), where=where)


def _first(value: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((value[name] for name in names if value.get(name) is not None), None)
