"""Items on their way through the disk: what is kept of them, in which order, and what it is called."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.canonical import canonical_json, digest
from stages.ingest.content import Entries, content_of, entry_of, entry_of_packed
from stages.ingest.normal import Call, Refused, Score, Span
from stages.ingest.spool import PARTS, Spool, traces_in
from stages.ingest.stored import KINDS, canonical_bytes, restored, stored

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
CALLS = st.builds(
    Call,
    messages=st.lists(st.fixed_dictionaries({"role": TEXTS, "content": TEXTS}), max_size=3).map(tuple),
    completion=st.none() | TEXTS,
    temperature=st.sampled_from([None, 0.0, 0.7, 1e-7]),
    top_k=st.sampled_from([None, 0, 5]),
    cached=st.sampled_from([None, False, True]),
    prompt_ids=st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple),
    choices=st.sampled_from([0, 1, 2]),
)
SPANS = st.builds(
    Span,
    trace=st.sampled_from(["t", "u", "v"]),
    span=st.sampled_from("abcd"),
    parent=st.sampled_from([None, "a", ""]),
    kind=st.sampled_from(["llm", "other"]),
    start=st.sampled_from([None, 0, 1]),
    order=st.sampled_from([0, 1]),
    attempt=st.sampled_from([None, 0, 1]),
    inputs=JSON,
    metadata=st.dictionaries(TEXTS, JSON, max_size=2),
    call=st.none() | CALLS,
    where=st.sampled_from(["", "a file"]),
)
SCORES = st.builds(Score, trace=st.sampled_from("tuv"), name=TEXTS, value=st.sampled_from([None, 0.0, 1e-5]))


@given(JSON)
@example({"a": 1e-5})
@example([1e-05, 1.5e-7, 1e16, 123456789012345680.0, -0.0, 5e-324, 1e300, 0.0001])
@example("a:1e-5")
def test_stored_bytes_are_canonical_json(value: Any) -> None:
    assert canonical_bytes(value).decode() == canonical_json(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_is_stored_in_its_canonical_form(value: float) -> None:
    assert canonical_bytes([value]).decode() == canonical_json([value])


@given(SPANS)
def test_a_span_comes_back_as_it_was_but_for_where_it_stood(span: Span) -> None:
    assert restored("span", stored(span)) == replace(span, where="")


@given(SCORES)
def test_a_score_comes_back_as_it_was(score: Score) -> None:
    assert restored("score", stored(score)) == score


LEAST: dict[type, dict[str, Any]] = {
    Span: {"trace": "t", "span": "s"},
    Call: {"messages": ()},
    Score: {"trace": "t", "name": "n", "value": None},
}
LISTS = ("messages", "tool_calls", "prompt_ids", "completion_ids", "logprobs", "told")


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, item.name) for kind in LEAST for item in fields(kind) if item.name not in ("where", "call")],
)
def test_every_field_comes_back_whether_many_items_have_it_or_few(kind: type, name: str) -> None:
    made = kind(**{**LEAST[kind], name: (1,) if name in LISTS else 7})
    item = Span("t", "s", call=made) if isinstance(made, Call) else made
    assert restored(KINDS[type(item)], stored(item)) == item


@given(SPANS, st.sampled_from(["temperature", "top_k", "cached"]))
def test_a_zero_is_not_nothing_to_a_digest(span: Span, name: str) -> None:
    nothing = {"temperature": None, "top_k": None, "cached": None}
    call = Call((), **nothing)
    zero = replace(call, **{name: False if name == "cached" else 0})
    assert stored(replace(span, call=call)) != stored(replace(span, call=zero))


@settings(max_examples=12, deadline=None)
@given(st.lists(SPANS | SCORES, min_size=1, max_size=8), st.integers(1, 3))
def test_what_traces_are_does_not_depend_on_how_many_spools_they_lie_in(
    tmp_path_factory: pytest.TempPathFactory, items: list[Span | Score], count: int
) -> None:
    folder = tmp_path_factory.mktemp("spools")
    spools = [Spool(folder / str(number)) for number in range(count)]
    whole = Spool(folder / "whole")
    for place, item in enumerate(items):
        assert spools[place % count].add(item, "f") is None
        assert whole.add(item, "f") is None
    for spool in (*spools, whole):
        spool.flush()
    entries = Entries(folder / "entries")
    for place in range(PARTS):
        packed = list(traces_in([folder / str(number) for number in range(count)], place))
        entries.add(map(entry_of_packed, packed))
        assert [entry_of_packed(one) for one in packed] == [entry_of(one.trace()) for one in packed]
    told = [entry_of(trace) for trace in whole.traces()]
    assert list(entries) == sorted(told)
    found = content_of(entries)
    assert found.digest == digest([[name, one] for name, one, _ in sorted(told)])
    assert (found.traces, found.spans) == (len(told), sum(spans for *_, spans in told))


def test_what_has_no_json_form_is_refused_in_words_that_have_one(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    for number, value in enumerate((2**70, object(), {"a": "\ud83d"}, {"\ud83d": 1})):
        refused = spool.add(Span(f"t{number}", "a", inputs=value), "f")
        assert refused is not None
        assert refused.reason == "not_storable"
        orjson.dumps(refused)
    assert spool.add(Span("half \ud83d", "a"), "f") is not None
    assert spool.add(Span("nan", "a", inputs=math.nan), "f") is None  # nothing, as before
    assert {trace.id: len(trace.refused) for trace in spool.traces()} == {
        **{f"t{number}": 1 for number in range(4)},
        "half ?": 1,
        "nan": 0,
    }


def test_a_refusal_keeps_where_it_stood() -> None:
    refused = Refused("broken", "why", "file, line 3", "t")
    assert restored("refused", stored(refused)) == refused
