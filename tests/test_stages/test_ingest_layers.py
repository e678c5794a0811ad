"""LM calls that a framework and the client library below it both logged are one call each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.ingest.layers import FURTHER_RECORD, MAKES_CALLS
from stages.ingest.normal import Call, Span
from stages.ingest.tree import Tree, grow
from tests.test_stages.ingest_kit import TRACES, read_file

Asked = tuple[dict[str, str], ...]
ASKED: Asked = ({"role": "user", "content": "2+2?"},)
OTHER: Asked = ({"role": "system", "content": "Be brief."}, *ASKED)
ROOT = Span("t", "root", kind="chain")


def span(name: str, above: str, start: int, asked: Asked, said: str | None = None, **more: Any) -> Span:
    fields = {name: more.pop(name) for name in list(more) if name in Call.__dataclass_fields__}
    return Span("t", name, above, "llm", name, start, call=Call(asked, said, **fields), **more)


def tree_of(*spans: Span) -> Tree:
    tree = grow([ROOT, *spans])
    assert isinstance(tree, Tree)
    return tree


def left_out(tree: Tree) -> dict[str, str]:
    return {one.span: why for one, why in tree.found.further}


def test_a_call_is_one_however_many_layers_log_it() -> None:
    tree = tree_of(
        span("framework", "root", 1, ASKED, said="4", agent="adder"),
        span("proxy", "framework", 2, ASKED, said="4", finish_reason="stop"),
        span("client", "proxy", 3, ASKED, said="4", temperature=0.0, completion_ids=(5,), module="add"),
        span("next", "root", 9, ASKED, said="four"),
    )
    first, second = tree.calls()
    assert (first.span, first.agent, first.module, second.span) == ("framework", "adder", "add", "next")
    assert first.call == Call(
        ASKED, completion="4", finish_reason="stop", temperature=0.0, completion_ids=(5,)
    )  # what only one of them tells is kept
    assert left_out(tree) == {"proxy": FURTHER_RECORD, "client": FURTHER_RECORD}


def test_a_call_has_the_prompt_that_was_sent_and_not_the_one_that_a_wrapper_was_given() -> None:
    tree = tree_of(span("wrapper", "root", 1, ASKED, said="4", module="m"), span("sent", "wrapper", 2, OTHER, said="4"))
    (call,) = tree.calls()
    assert call.call is not None
    assert (call.span, call.call.messages, call.module) == ("sent", OTHER, "m")
    assert left_out(tree) == {"wrapper": FURTHER_RECORD}


def test_requests_of_a_call_that_failed_or_say_nothing_are_no_calls_of_their_own() -> None:
    tree = tree_of(
        span("call", "root", 1, ASKED, said="4"),
        span("refused", "call", 2, ASKED, error="429"),
        span("bare", "call", 3, (), finish_reason="length"),
    )
    (call,) = tree.calls()
    assert call.call == Call(ASKED, completion="4", finish_reason="length")
    assert call.error is None


def test_a_call_that_two_instrumentations_log_side_by_side_is_one() -> None:
    framework, client = {"scope": "langchain"}, {"scope": "openai"}
    spans = (
        span("a", "root", 1, ASKED, said="", finish_reason="tool_calls", end=9, **framework),
        span("b", "root", 2, ASKED, said="", tool_calls=("weather",), temperature=0.5, end=8, **client),
        Span("t", "chain", "root"),
        span("c", "chain", 11, ASKED, said="4", end=19, agent="adder", **framework),
        span("d", "root", 12, ASKED, said="4", end=18, **client),
    )
    tree = tree_of(*spans)
    first, second = tree.calls()
    assert first.call == Call(ASKED, "", ("weather",), finish_reason="tool_calls", temperature=0.5)
    assert (second.span, second.agent) == ("c", "adder")
    assert left_out(tree) == {"b": FURTHER_RECORD, "d": FURTHER_RECORD}


def test_calls_side_by_side_are_two_unless_everything_says_that_they_are_one() -> None:
    outer = span("a", "root", 1, ASKED, said="4", end=9, scope="langchain")
    for other in (
        span("b", "root", 2, ASKED, said="4", end=8, scope="langchain"),
        span("b", "root", 2, ASKED, said="4", end=8),
        span("b", "root", 2, ASKED, said="5", end=8, scope="openai"),
        span("b", "root", 2, OTHER, said="4", end=8, scope="openai"),
        span("b", "root", 2, ASKED, said="4", end=10, scope="openai"),
        span("b", "root", 2, ASKED, said="4", scope="openai"),
    ):
        assert len(tree_of(outer, other).calls()) == 2


def test_a_step_that_makes_several_calls_is_none_itself() -> None:
    tree = tree_of(
        span("judge", "root", 1, ASKED, said="yes"),
        span("a", "judge", 2, ASKED, said="yes"),
        span("b", "judge", 3, ASKED, said="no"),
        span("bare", "root", 4, ()),
        span("c", "bare", 5, ASKED),
    )
    assert [call.span for call in tree.calls()] == ["a", "b", "c"]
    assert left_out(tree) == {"judge": MAKES_CALLS, "bare": MAKES_CALLS}


def test_spans_that_stand_above_each_other_are_all_calls() -> None:
    tree = tree_of(span("a", "b", 1, ASKED, said="4"), span("b", "a", 2, ASKED, said="4"))
    assert [call.span for call in tree.calls()] == ["a", "b"]


def test_many_layers_are_no_harm() -> None:
    deep = [
        span(f"{place:04}", f"{place - 1:04}" if place else "root", place, ASKED, said="4") for place in range(2000)
    ]
    assert [call.span for call in tree_of(*deep).calls()] == ["0000"]


def test_the_end_of_a_stream_is_the_answer_to_the_last_request_that_waits_for_one() -> None:
    tree = tree_of(
        span("whole", "root", 1, ASKED, said="3"),
        span("one", "root", 2, ASKED),
        span("one end", "root", 3, ASKED, said="4", streamed=True, end=3),
        span("other", "root", 4, OTHER),
        span("two", "root", 5, ASKED),
        span("two end", "root", 6, ASKED, said="four", streamed=True, end=6),
        span("lost end", "root", 7, ASKED, said="5", streamed=True, end=7),
    )
    found = {call.span: call.call.completion if call.call else None for call in tree.calls()}
    assert found == {"whole": "3", "one": "4", "other": None, "two": "four", "lost end": "5"}
    assert [call.end for call in tree.calls()] == [None, 3, None, 6, 7]
    assert left_out(tree) == {"one end": FURTHER_RECORD, "two end": FURTHER_RECORD}


def test_calls_are_offered_the_tools_of_the_agent_nearest_above_them() -> None:
    tree = tree_of(
        Span("t", "agent", "root", "agent", offers=True),
        Span("t", "turn", "agent"),
        span("in a turn", "turn", 1, ASKED, said="4"),
        Span("t", "tool", "agent", "tool"),
        span("in a tool", "tool", 2, ASKED, said="4"),
        Span("t", "helper", "agent", "agent"),
        span("of a helper", "helper", 3, ASKED, said="4"),
        span("of none", "root", 4, ASKED, said="4"),
    )
    assert [one.span for one in tree.calls() if one.call is not None and one.call.tools] == ["in a turn"]


def test_dspy_litellm_and_openai_that_are_all_instrumented_log_one_call_three_times(tmp_path: Path) -> None:
    found = read_file(TRACES / "openinference/dspy_litellm_openai_layers.jsonl")
    assert len(found.calls) == 6
    tree = grow(found.spans)
    assert isinstance(tree, Tree)
    first, second = tree.calls()
    assert (first.name, second.name) == ("LM.__call__", "LM.__call__")
    assert first.call is not None
    assert (first.call.finish_reason, first.call.temperature) == ("stop", 0.8)
    assert [why for _, why in tree.found.further] == [FURTHER_RECORD] * 4
