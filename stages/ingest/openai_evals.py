"""OpenAI's evals: output items of a run, `{datasource_item, sample, results}`, one a line or in a page of the API.

A sample is what the model was asked and answered: one call. The graders' results are scores by their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.ingest.answers import answer_of
from stages.ingest.guard import each
from stages.ingest.normal import Item, Refused, Score, Span
from stages.ingest.requests import call_of, known, request_of
from stages.ingest.shape import Shape
from stages.ingest.values import identity, judged, nanoseconds, text

NAME = "openai_evals"
SPLIT = ("data",)


def recognises(value: Any, shape: Shape) -> bool:
    """An output item, or a page of them."""
    if isinstance(value, Mapping) and isinstance(page := value.get("data"), list) and page:
        value = page[0]
    return isinstance(value, Mapping) and value.get("object") == "eval.run.output_item" and "sample" in value


def read(value: Mapping[str, Any], where: str) -> Iterator[Item]:
    """Each output item as a trace of one call, and its scores."""
    held = value.get("data")
    items = held if isinstance(held, list) else [value]
    yield from each(items, lambda item: _item(item, where), where, "output item")


def _item(item: Mapping[str, Any], where: str) -> Iterator[Item]:
    trace = identity(item.get("id"))
    if trace is None:
        yield Refused("no_trace_id", "the output item has no id", where)
        return
    sample = item.get("sample")
    sample = sample if isinstance(sample, Mapping) else {}
    request = request_of({name: sample.get(name) for name in sample if name not in ("input", "output")})
    request.messages = request_of({"messages": sample.get("input")}).messages
    answer = answer_of(sample.get("output")) if sample.get("output") else None
    failed = sample.get("error")
    yield Span(
        trace,
        "call",
        kind="llm",
        start=nanoseconds(item.get("created_at")),
        error=text(failed.get("message")) if isinstance(failed, Mapping) else None,
        inputs=item.get("datasource_item"),
        outputs=answer.message["content"] if answer and answer.message else None,
        call=call_of(request, answer, finish_reason=text(sample.get("finish_reason"))),
        example=None if item.get("datasource_item_id") is None else str(item["datasource_item_id"]),
        metadata=known({"eval": item.get("eval_id"), "run": item.get("run_id")}),
        where=where,
    )
    yield from each(item.get("results"), lambda result: _score(result, trace, where), where, "result", trace)


def _score(result: Mapping[str, Any], trace: str, where: str) -> Iterator[Item]:
    value = result.get("score") if result.get("score") is not None else result.get("passed")
    yield Score(trace, str(result.get("name") or "result"), judged(value), source="openai_evals", where=where)
