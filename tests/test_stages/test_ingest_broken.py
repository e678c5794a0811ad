"""Logs that are broken: nothing raises, what is broken is refused, and what stands beside it is read."""

from __future__ import annotations

import gzip
import json
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.ingest import json_values
from stages.ingest.formats import BUILT_IN, format_named, formats, read_items
from stages.ingest.normal import Refused, Score, Span
from tests.test_stages.ingest_kit import TRACES, counts, held, packed, parquet, read_file, read_value, sample_files
from tests.test_stages.ingest_values import CHAT, HEX, MLFLOW_2, RUN, SAID, SAMPLE, SPAN, VALUES

KEYS = st.sampled_from(
    sorted(
        {
            key
            for _, value in VALUES.values()
            for part in (value, *(inner for inner in value.values() if isinstance(inner, dict)))
            for key in part
        }
    )
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just('{"a": [1]}'))
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=5),
    max_leaves=20,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in _places(item, (*path, key)))]


def _with(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    found = deepcopy(value)
    here = found
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = other
    return found


@pytest.mark.parametrize("name", BUILT_IN)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=JSON)
def test_any_value_is_read_or_refused_in_any_format(name: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "value.jsonl"
    path.write_text(json.dumps(value) + "\n")
    for item in read_items(str(path), format_named(name)):
        assert isinstance(item, (Span, Score, Refused))


@settings(max_examples=150, deadline=None)
@given(value=JSON)
def test_recognition_of_any_value_raises_nothing(value: Any) -> None:
    for known in formats().values():
        for shape in ("object", "array", "lines", "rows"):
            assert known.recognises(value, shape) in (True, False)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_field_of_a_wrong_type_raises_nothing(name: str, tmp_path: Path) -> None:
    format_name, value = VALUES[name]
    places = _places(value)
    wrong = [None, 7, -1.5, "text", "", [], {}, [None], {"a": 1}, ["x", 3], True, float("nan"), '"{\\"a\\": 1}"']
    draw = random.Random(name)
    cases = [_with(value, place, other) for place in places for other in draw.sample(wrong, 4)]
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(case) + "\n" for case in cases))
    for item in read_items(str(path), format_named(format_name)):
        assert isinstance(item, (Span, Score, Refused))
        if isinstance(item, Span):
            assert isinstance(item.trace, str)
            assert item.call is None or all(isinstance(said["content"], str) for said in item.call.messages)


# good neighbours


def _spoilt_list(name: str) -> tuple[Any, int]:
    """A value that holds several things, one of them broken, and how many spans the others make."""
    good = {"trace_id": HEX, "span_id": SPAN, "name": "x", "attributes": {}}
    if name == "otlp_json":
        spans = [{"traceId": HEX, "spanId": "1" * 16}, {"traceId": HEX, "attributes": 3, "spanId": "2" * 16}, None]
        return {"resourceSpans": [3, {"scopeSpans": [{"spans": spans}, "x"]}]}, 1
    if name == "otel_spans":
        return {"spans": [good, 7, {**good, "span_id": "2" * 16, "attributes": [1]}]}, 1
    if name == "mlflow":
        whole: Any = deepcopy(MLFLOW_2)
        whole["data"]["spans"] += [{"context": 3}, "x", {"span_id": "a", "attributes": "no"}]
        return whole, 1
    if name == "langsmith":
        return {"post": [RUN, {"id": {}}, 3], "patch": [None]}, 1
    if name == "langfuse":
        trace = VALUES["langfuse: a trace of the API"][1]
        return {**trace, "observations": [*trace["observations"], {"id": []}, 3]}, 2
    if name == "inspect_ai":
        return {"samples": [SAMPLE, 3, {**SAMPLE, "uuid": "u2", "messages": 7, "scores": 3}]}, 3
    steps = [{"source": "user", "message": "q"}, {"source": 3}, {"source": "agent", "message": "a", "metrics": 3}]
    return {"schema_version": "ATIF-v1.0", "session_id": "s", "agent": {}, "steps": steps}, 2


@pytest.mark.parametrize("name", ["otlp_json", "otel_spans", "mlflow", "langsmith", "langfuse", "inspect_ai", "atif"])
def test_a_broken_part_is_refused_and_its_neighbours_are_read(name: str, tmp_path: Path) -> None:
    value, spans = _spoilt_list(name)
    found = read_value(value, tmp_path, name)
    assert len(found.spans) == spans
    assert found.refused


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_line_cut_short_leaves_the_lines_around_it(name: str, tmp_path: Path) -> None:
    line = json.dumps(VALUES[name][1])
    path = tmp_path / "lines"
    path.write_text(f"{line}\n{line[: len(line) // 2]}\n\n{line}")
    found, whole = read_file(path), read_value(VALUES[name][1], tmp_path)
    assert [item.reason for item in found.refused] == ["not_json"]
    assert len(found.spans) == 2 * len(whole.spans)
    assert len(found.scores) == 2 * len(whole.scores)


def test_an_array_cut_short_keeps_what_came_before(tmp_path: Path) -> None:
    data = json.dumps([{"trace_id": HEX, "span_id": f"{place:016x}", "attributes": {}} for place in range(1, 9)])
    path = tmp_path / "cut.json"
    path.write_text(data[: len(data) * 3 // 4])
    found = read_file(path)
    assert [item.reason for item in found.refused] == ["not_json"]
    assert len(found.spans) in (5, 6)


@pytest.mark.parametrize("name", ["tau_bench/gpt-4o-airline_rows_0_2.json", "dspy_history/dspy_lm_history_0_8.json"])
def test_arrays_that_are_large_are_read_item_after_item(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_file(TRACES / name)
    monkeypatch.setattr(json_values, "WHOLE", 1 << 10)
    streamed = read_file(TRACES / name)
    assert streamed.spans == whole.spans
    assert streamed.scores == whole.scores


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("otlp_json/two_agents_genai.otlp.json", None),
        ("inspect_ai/log_read_sample.json", None),
        ("mlflow/dspy_multihop_0.json", "too_large"),
    ],
)
def test_large_objects_are_read_by_their_lists_or_refused(
    name: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(TRACES / name)
    whole = read_file(path)
    monkeypatch.setattr(json_values, "WHOLE", 1 << 10)
    assert whole.format
    known = format_named(whole.format)
    found = held(read_items(path, known))
    assert [item.reason for item in found.refused] == ([reason] if reason else [])
    if reason is None:
        assert [span.span for span in found.spans] == [span.span for span in whole.spans]
        assert {span.trace for span in found.spans} == {span.trace for span in whole.spans}


@pytest.mark.parametrize("how", ["gz", "zst"])
def test_packed_files_hold_the_same(how: str, tmp_path: Path) -> None:
    for path in sample_files():
        if path.stat().st_size < 40_000:
            other = packed(tmp_path / "packed", path.read_bytes(), how)
            assert counts(read_file(other)) == counts(read_file(path))


@pytest.mark.parametrize("how", ["gz", "zst"])
def test_a_packed_file_cut_short_keeps_what_came_before_or_says_so(how: str, tmp_path: Path) -> None:
    draw = random.Random(0)
    spans = [{"trace_id": HEX, "span_id": SPAN, "attributes": {"x": draw.randbytes(2000).hex()}} for _ in range(400)]
    whole = packed(tmp_path / "whole", "".join(json.dumps(span) + "\n" for span in spans).encode(), how)
    cut = tmp_path / "cut"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    found = read_file(cut, "otel_spans")
    assert 100 < len(found.spans) < 300
    assert "not_readable" in {item.reason for item in found.refused}
    assert {item.reason for item in found.refused} <= {"not_readable", "not_json"}


@pytest.mark.parametrize("share", [0.6, 0.9, 0.999])
def test_a_small_file_of_gzip_cut_short_gives_the_lines_that_are_whole(share: float, tmp_path: Path) -> None:
    draw = random.Random(0)
    lines = [json.dumps({"id": f"{draw.getrandbits(64):x}", "messages": [*CHAT, SAID]}) + "\n" for _ in range(40)]
    data = gzip.compress("".join(lines).encode())
    (tmp_path / "log.gz").write_bytes(data[: int(len(data) * share)])
    found = read_file(tmp_path / "log.gz")
    assert len(found.spans) > 40 * share * 0.7
    assert found.refused[-1].reason == "not_readable"


def test_a_byte_order_mark_is_no_part_of_the_log(tmp_path: Path) -> None:
    path = packed(tmp_path / "marked", b"\xef\xbb\xbf" + json.dumps(RUN).encode(), "plain")
    assert counts(read_file(path)) == counts(read_value(RUN, tmp_path))


@pytest.mark.parametrize(
    "data", [b"", b"\n\n", b"\xef\xbb\xbf", b"[]", b"\x1f\x8b", b"PAR1", b"PAR1" * 9, b"\x00" * 64]
)
def test_files_that_hold_nothing_are_refused(data: bytes, tmp_path: Path) -> None:
    found = read_file(packed(tmp_path / "empty", data, "plain"))
    assert (found.format, found.spans) == (None, [])
    assert found.refused[0].reason in ("empty", "not_readable", "binary")


def test_protobuf_is_refused_as_such(tmp_path: Path) -> None:
    data = b"\n\xb1\x05\n\x1e\n\x1c\n\x0cservice.name\x12\x0c\n\nmy-service\x12\n7\n"
    (refused,) = read_file(packed(tmp_path / "spans.pb", data, "gz")).refused
    assert (refused.reason, "protobuf" in refused.detail) == ("binary", True)


# odd contents


@pytest.mark.parametrize("odd", ["\ud83d", "a\x00b", "x" * 2_000_000, "\u2028", "\U0001f600"], ids=str.__len__)
def test_odd_texts_are_kept_as_they_were(odd: str, tmp_path: Path) -> None:
    said = {"role": "assistant", "content": odd}
    call = read_value({"messages": [*CHAT, said]}, tmp_path).call
    assert call.completion == odd
    run = {**RUN, "outputs": {"choices": [{"message": said}]}}
    assert read_value(run, tmp_path).call.completion == odd
    trajectory = {"task_id": 1, "traj": [*CHAT, said]}
    assert read_value(trajectory, tmp_path).call.completion == odd


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none_are_null(value: str, tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text(f'{{"trace_id": "t", "score": {value}}}\n')
    assert [score.value for score in read_file(path).scores] == [None]


def test_json_in_json_in_json_is_unpacked(tmp_path: Path) -> None:
    def thrice(value: Any) -> str:
        return json.dumps(json.dumps(json.dumps(value)))

    run = {**RUN, "inputs": thrice(RUN["inputs"]), "outputs": thrice(RUN["outputs"])}
    assert read_value(run, tmp_path).calls == read_value(RUN, tmp_path).calls


def test_text_that_pythons_repr_made_stays_text(tmp_path: Path) -> None:
    run = {**RUN, "run_type": "chain", "inputs": "{'agent_name': __import__('os')}", "outputs": "{'a': 1}"}
    root = read_value(run, tmp_path).root
    assert (root.inputs, root.outputs) == ("{'agent_name': __import__('os')}", "{'a': 1}")


def test_tables_have_nested_values_times_and_bytes(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    row = {
        "trace_id": bytes.fromhex(HEX),
        "span_id": bytes.fromhex(SPAN),
        "start_time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "attributes": {"gen_ai.operation.name": "chat", "gen_ai.input.messages": json.dumps([*CHAT, SAID])},
    }
    (span,) = read_file(parquet(tmp_path / "spans.parquet", [row])).spans
    assert (span.trace, span.span, span.start, span.kind) == (HEX, SPAN, 1767323045 * 10**9, "llm")


@pytest.mark.parametrize("first", ["null", "0.5", "{}", '{"version": 3}', '"a log of mine"', "{'id': 1}"])
@pytest.mark.parametrize("how", ["lines", "array"])
def test_a_log_that_begins_with_something_else_is_known_by_what_follows(first: str, how: str, tmp_path: Path) -> None:
    chats = [json.dumps({"id": f"c{place}", "messages": [*CHAT, SAID]}) for place in range(3)]
    if how == "array":
        first = first if first != "{'id': 1}" else "null"  # an array with something that is no JSON ends there
    text = "\n".join([first, *chats]) if how == "lines" else f"[{','.join([first, *chats])}]"
    (tmp_path / "log").write_text(text + "\n")
    found = read_file(tmp_path / "log")
    assert (found.format, [span.trace for span in found.spans]) == ("openai_chat", ["c0", "c1", "c2"])
    assert len(found.refused) == 1


def test_a_file_of_what_is_no_log_is_refused_after_a_look_at_its_first_values(tmp_path: Path) -> None:
    chat = json.dumps({"id": "c", "messages": [*CHAT, SAID]})
    (tmp_path / "log").write_text('{"version": 3}\n' * 64 + chat + "\n")
    (refused,) = read_file(tmp_path / "log").refused
    assert (refused.reason, "version" in refused.detail) == ("unknown_format", True)
