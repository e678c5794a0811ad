"""LangSmith runs: batches `{post, patch}` as its SDKs send them or leave them, and exports of runs as rows or as JSON.

A run is posted when it starts and patched when it ends. Within a batch the two are put together by id; where they lie
in different values each is a span of its own with the same id, of which this one has the input and that one the output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.answers import answer_of
from stages.ingest.conventions import logged_tokens, mmgrpo_fields, node_of, sampling
from stages.ingest.guard import each
from stages.ingest.langsmith_sent import batch_left, captured, is_left
from stages.ingest.normal import Call, Item, Kind, Refused, Score, Span
from stages.ingest.requests import call_of, known, request_of
from stages.ingest.shape import Shape
from stages.ingest.values import identity, integer, judged, nanoseconds, number, text, unpacked

NAME = "langsmith"
values_of = captured
_KINDS: Mapping[str, Kind] = {
    "llm": "llm",
    "chain": "chain",
    "tool": "tool",
    "retriever": "retriever",
    "prompt": "other",
    "parser": "other",
    "embedding": "other",
}
_PLACE = re.compile(r"Z([0-9a-fA-F-]{32,36})(?:\.|$)")
"""The id of a run in `dotted_order`, which names those above it first."""


def recognises(value: Any, shape: Shape) -> bool:
    """A batch of runs, a run, or an object with `runs`."""
    if not isinstance(value, Mapping):
        return False
    if is_left(value):
        return True
    lists = [value.get(name) for name in ("post", "patch", "runs")]
    runs = [run for listed in lists if isinstance(listed, list) for run in listed]
    if runs:
        return isinstance(runs[0], Mapping) and _is_run(runs[0])
    return _is_run(value) and "run_type" in value


def _is_run(value: Mapping[str, Any]) -> bool:
    return ("run_type" in value or "dotted_order" in value) and ("inputs" in value or "outputs" in value)


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """Every run as a span, and its feedback."""
    if is_left(value):
        value = batch_left(value)
    if not any(isinstance(value.get(name), list) for name in ("post", "patch", "runs")):
        yield from _run(value, where)
        return
    merged: dict[Any, Any] = {}
    for listed in (value.get("post"), value.get("patch"), value.get("runs")):
        for place, run in enumerate(listed if isinstance(listed, list) else []):
            own = _own(run) if isinstance(run, Mapping) else None
            key = own or (id(listed), place)
            merged[key] = _patched(merged[key], run) if key in merged else run
    yield from each(list(merged.values()), lambda run: _run(run, where), where, "run")
    yield from each(value.get("feedback"), lambda row: _feedback(row, where), where, "feedback")
    for detail, trace in value.get("refused") or ():
        yield Refused("broken", detail, where, trace)


def _patched(run: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A run with what a patch says; what it leaves empty stays."""
    found = {**run, **{name: value for name, value in patch.items() if value not in (None, {}, [], "")}}
    if isinstance(run.get("extra"), Mapping) and isinstance(patch.get("extra"), Mapping):
        found["extra"] = {**run["extra"], **patch["extra"]}
    return found


def _ids(run: Mapping[str, Any]) -> list[str]:
    return _PLACE.findall(str(run.get("dotted_order") or ""))


def _own(run: Mapping[str, Any]) -> str | None:
    return identity(run.get("id")) or next(iter(_ids(run)[-1:]), None)


def _run(run: Mapping[str, Any], where: str) -> Iterator[Item]:
    places, own = _ids(run), _own(run)
    above = identity(run.get("parent_run_id")) or next(iter(places[-2:-1]), None)
    if above is None and isinstance(listed := unpacked(run.get("parent_run_ids")), list) and listed:
        above = identity(listed[-1])
    trace = identity(run.get("trace_id")) or (places[0] if places else own if above is None else None)
    if trace is None or own is None:
        yield Refused("no_trace_id" if trace is None else "no_span_id", f"the run '{run.get('name')}' has none", where)
        return
    extra = unpacked(run.get("extra"))
    extra = extra if isinstance(extra, Mapping) else {}
    metadata = unpacked(extra.get("metadata") or run.get("metadata"))
    metadata = metadata if isinstance(metadata, Mapping) else {}
    inputs, outputs = unpacked(run.get("inputs")), unpacked(run.get("outputs"))
    kind = _KINDS.get(str(run.get("run_type")), "other")
    yield Span(
        trace,
        own,
        above,
        kind,
        str(run.get("name") or ""),
        nanoseconds(run.get("start_time")),
        nanoseconds(run.get("end_time")),
        error=str(run.get("error") or "failed") if run.get("error") or run.get("status") == "error" else None,
        agent=node_of(metadata),
        inputs=inputs or None,
        outputs=outputs or None,
        call=_call(inputs, outputs, extra, metadata) if kind == "llm" else None,
        example=text(run.get("reference_example_id")),
        user=text(metadata.get("user_id")) if above is None else None,
        metadata=_kept(metadata) if above is None else {},
        where=where,
        **mmgrpo_fields(metadata),
    )
    yield from _scores(run, trace, None if above is None else own, where)
    yield from each(unpacked(run.get("child_runs")), lambda child: _run(child, where), where, "child run", trace)


def _kept(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What the program's author added; not what LangSmith and LangGraph say of themselves."""
    return {name: value for name, value in metadata.items() if not name.startswith(("ls_", "langgraph_", "mmgrpo."))}


def _call(inputs: Any, outputs: Any, extra: Mapping[str, Any], metadata: Mapping[str, Any]) -> Call | None:
    invocation = extra.get("invocation_params")
    invocation = invocation if isinstance(invocation, Mapping) else {}
    request, answer = request_of(inputs), answer_of(outputs) if outputs else None
    if request.messages is None and answer is None:
        return None
    plain = {name.removeprefix("ls_"): value for name, value in metadata.items() if name.startswith("ls_")}
    return call_of(
        request,
        answer,
        **{name: value for name, value in sampling({**plain, **invocation}).items() if name not in request.settings},
        **known(logged_tokens(metadata)),
        tools=request.tools or bool(invocation.get("tools") or invocation.get("functions")),
        model=(answer.model if answer else None)
        or text(metadata.get("ls_model_name"))
        or text(invocation.get("model")),
    )


def _scores(run: Mapping[str, Any], trace: str, span: str | None, where: str) -> Iterator[Item]:
    stats = unpacked(run.get("feedback_stats"))
    for name, found in stats.items() if isinstance(stats, Mapping) else ():
        held = unpacked(found)
        if isinstance(held, Mapping) and integer(held.get("n")) != 0:
            yield Score(trace, str(name), number(held.get("avg")), span, "feedback", where)
    listed = unpacked(run.get("feedback") or run.get("feedbacks"))
    for row in listed if isinstance(listed, list) else ():
        if isinstance(row, Mapping) and text(row.get("key")):
            yield _score(row, trace, span, where)


def _score(row: Mapping[str, Any], trace: str, span: str | None, where: str) -> Score:
    value = row.get("score") if row.get("score") is not None else row.get("value")
    return Score(trace, row["key"], judged(value), span, text(row.get("source")), where)


def _feedback(row: Mapping[str, Any], where: str) -> Iterator[Item]:
    """Feedback that was sent by itself: of a run, which is the trace where it is its root."""
    span, name = identity(row.get("run_id")), identity(row.get("trace_id"))
    if name is None:
        yield Refused("no_trace_id", f"the feedback '{row.get('key')}' has none", where)
    else:
        yield _score(row, name, None if span == name else span, where)
