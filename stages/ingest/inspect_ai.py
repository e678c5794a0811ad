"""Logs of inspect_ai in JSON: `{eval, samples}`, each sample with its messages, events and scores.

A log is JSON, or a `.eval` file: a zip with a file of JSON for each sample. A sample is a trace, and so is each of its
epochs. Model events are the calls. Where a log has no events, the assistant's messages are, with what stands before
them as the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import fsspec

from schemas.addresses import without_secrets
from stages.ingest.guard import each
from stages.ingest.inspect_events import events_of, older, resolved
from stages.ingest.json_stream import parse
from stages.ingest.messages import messages_of
from stages.ingest.normal import Item, Refused, Score, Span
from stages.ingest.parts import content_of
from stages.ingest.shape import Shape, Value
from stages.ingest.trajectory import ROOT, calls_of, trace_id
from stages.ingest.values import identity, judged, nanoseconds, text
from stages.ingest.zipped import members_of, read_members

NAME = "inspect_ai"
SPLIT = ("samples",)
_SAMPLES, _HEADERS = "samples/", ("header.json", "_journal/start.json")
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Correct, partially correct, incorrect, no answer: as inspect_ai's own metrics count them."""


def recognises(value: Any, shape: Shape) -> bool:
    """A log with `eval` and `samples`, or samples of one."""
    if not isinstance(value, Mapping):
        return False
    samples = value.get("samples")
    if isinstance(value.get("eval"), Mapping) and "task" in value["eval"]:
        return True
    first = samples[0] if isinstance(samples, list) and samples else value
    return isinstance(first, Mapping) and all(name in first for name in ("id", "epoch", "input", "target", "messages"))


def values_of(address: str) -> Iterator[Value | Refused] | None:
    """The samples of a `.eval` file, each as its last record has it; None for other files."""
    with fsspec.open(address, "rb") as raw:
        names = members_of(raw)
    if not names or not any(name in _HEADERS or name.startswith(_SAMPLES) for name in names):
        return None
    return _samples(address)


def _samples(address: str) -> Iterator[Value | Refused]:
    shown, found = without_secrets(address), False
    with fsspec.open(address, "rb") as raw:
        for name, data in read_members(raw, _SAMPLES):
            found, where = True, f"{shown}, {name}"
            if isinstance(data, str):
                yield Refused("not_readable", data, where)
                continue
            try:
                yield Value({"samples": [parse(data)]}, "object", where)
            except ValueError as error:
                yield Refused("not_json", str(error), where)
    if not found:
        yield Refused("no_spans", "the log holds no samples", shown)


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """Every sample of a log."""
    samples = value.get("samples") if "eval" in value or "samples" in value else [value]
    if not samples:
        yield Refused("no_spans", f"the log holds no samples; its status is {value.get('status')}", where)
    yield from each(samples, lambda sample: _sample(sample, where), where, "sample")


def _sample(sample: Mapping[str, Any], where: str) -> Iterator[Item]:
    events = sample.get("events") or older(sample).get("events")
    events = events if isinstance(events, list) else []
    first = events[0].get("timestamp") if events and isinstance(events[0], Mapping) else None
    parts = [sample.get(name) for name in ("id", "epoch", "input", "target", "messages")]
    trace = identity(sample.get("uuid")) or trace_id(NAME, first, *parts)
    output = sample.get("output")
    output = output if isinstance(output, Mapping) else {}
    choices = output.get("choices")
    said = choices[0].get("message") if isinstance(choices, list) and choices else None
    yield Span(
        trace,
        ROOT,
        kind="chain",
        start=nanoseconds(sample.get("started_at") or first),
        end=nanoseconds(sample.get("completed_at")),
        error=_error(sample.get("error")),
        inputs={"input": resolved(sample.get("input"), sample)},
        outputs=content_of(resolved(said, sample).get("content")).text if isinstance(said, Mapping) else None,
        example=None if sample.get("id") is None else str(sample["id"]),
        metadata=_metadata(sample),
        where=where,
    )
    spans = list(events_of(sample, trace, where))
    yield from spans
    if not any(isinstance(item, Span) and item.kind == "llm" for item in spans):
        yield from _of_messages(sample, trace, text(output.get("model")), where)
    yield from _scores(sample, trace, where)


def _of_messages(sample: Mapping[str, Any], trace: str, model: str | None, where: str) -> Iterator[Item]:
    held = resolved(sample.get("messages"), sample)
    found = messages_of(held)
    if found is None:
        if held:
            yield Refused("broken", "`messages` is not a list of chat messages", where, trace)
        return
    # Messages that the dataset brought along are no completions.
    logged = [item.get("source") == "input" for item in held]
    calls = calls_of(trace, found, where=where, model=model)
    yield from (span for span in calls if not logged[span.order - 1])


def _metadata(sample: Mapping[str, Any]) -> dict[str, Any]:
    own, limit = sample.get("metadata"), sample.get("limit")
    found = dict(own) if isinstance(own, Mapping) else {}
    found |= {name: sample[name] for name in ("epoch", "target") if sample.get(name) is not None}
    if isinstance(limit, Mapping):
        found["limit"] = limit.get("type")
    return found


def _error(value: Any) -> str | None:
    if isinstance(value, Mapping):
        return str(value.get("message") or "failed")
    return str(value) if value else None


def _scores(sample: Mapping[str, Any], trace: str, where: str) -> Iterator[Item]:
    scores = sample.get("scores")
    scores = scores if isinstance(scores, Mapping) else {"score": sample["score"]} if sample.get("score") else {}
    for name, score in scores.items():
        value = score.get("value") if isinstance(score, Mapping) else score
        if isinstance(value, Mapping):
            for part, inner in value.items():
                yield Score(trace, f"{name}.{part}", _graded(inner), source=name, where=where)
        else:
            yield Score(trace, str(name), _graded(value), source=str(name), where=where)


def _graded(value: Any) -> float | None:
    return _GRADES[value] if isinstance(value, str) and value in _GRADES else judged(value)
