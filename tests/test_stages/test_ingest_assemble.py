"""Traces in normal form become rows: the rules for roots, repeats, modules, places, rewards, inputs and fidelity."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.recipe_ingest import IngestSection
from stages.engines.models import eos_ids, load_tokenizer
from stages.ingest.assemble import Assembled, Assembler, Trace
from stages.ingest.content import content_of, entry_of
from stages.ingest.normal import Call, Refused, Score, Span
from stages.ingest.spool import Spool
from stages.ingest.tokens import Encoder
from tests.test_stages.engines_kit import tiny

SAID = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"})
ROOT = Span("t", "root", kind="chain", inputs={"question": "hi"}, outputs="bye", start=1, end=100)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    base = tiny(tmp_path_factory.mktemp("cache"))
    return Encoder(load_tokenizer(base), frozenset(eos_ids(base)))


def said(name: str, start: int, end: int | None = None, **more: Any) -> Span:
    call = more.pop("call", Call(SAID, "yes"))
    end = start + 5 if end is None else end
    return Span(
        "t", name, "root", "llm", name="chat", start=start, end=end, call=call, module=more.pop("module", "m"), **more
    )


def made(
    encoder: Encoder, *spans: Span, scores: tuple[Score, ...] = (), refused: tuple[Refused, ...] = (), **section: Any
) -> Assembled:
    assembler = Assembler(["question"], IngestSection(**section), encoder, {"tokenizer": "T", "template": "P"})
    (made,) = assembler.each([Trace("t", "f", spans, scores, refused)])
    return made


def places(found: Assembled) -> list[tuple[str, int, int, bool]]:
    return [(row["module"], row["invocation_index"], row["attempt"], row["concurrent"]) for row in found.invocations]


def test_calls_are_counted_by_module_in_the_order_of_their_starts(encoder: Encoder) -> None:
    spans = [said("c", 30), said("a", 10), said("b", 20, module="n")]
    assert places(made(encoder, ROOT, *spans)) == [("m", 0, 0, False), ("n", 0, 0, False), ("m", 1, 0, False)]


def test_calls_that_overlap_or_stand_at_one_moment_are_marked_and_others_are_not(encoder: Encoder) -> None:
    overlapping = made(encoder, ROOT, said("a", 10, 30), said("b", 20, 25), said("c", 40))
    assert places(overlapping) == [("m", 0, 0, True), ("m", 1, 0, True), ("m", 2, 0, False)]
    assert [place[3] for place in places(made(encoder, ROOT, said("a", 10), said("b", 10)))] == [True, True]
    assert not any(place[3] for place in places(made(encoder, ROOT, said("a", 10, 30), said("b", 20, 25, module="n"))))


def test_what_the_program_itself_logged_goes_before_what_is_derived(encoder: Encoder) -> None:
    spans = [said("a", 10, 30, invocation_index=1), said("b", 20, 25, invocation_index=0, attempt=2)]
    assert places(made(encoder, ROOT, *spans)) == [("m", 1, 0, False), ("m", 0, 2, False)]


def test_the_same_prompt_again_after_a_failure_is_another_attempt(encoder: Encoder) -> None:
    failed = said("a", 10, error="timeout", call=Call(SAID))
    found = made(encoder, ROOT, failed, said("b", 20), said("c", 30))
    assert places(found) == [("m", 0, 0, False), ("m", 0, 1, False), ("m", 1, 0, False)]
    assert [row["fidelity"] for row in found.invocations] == ["partial", "text", "text"]
    assert [row["finish_reason"] for row in found.invocations] == ["error", "stop", "stop"]


def test_a_trace_that_is_no_step_itself_failed_with_the_one_step_below_it(encoder: Encoder) -> None:
    whole = Span("t", "t", kind="chain", inputs={"question": "hi"}, start=1)
    step = Span("t", "step", "t", "chain", "program", 1, 9, error="boom")
    call = replace(said("a", 2), parent="step")
    for spans, error in (((step, call), "boom"), ((step, replace(call, parent="t")), None)):
        found = made(encoder, whole, *spans)
        assert found.rollout is not None
        assert (found.rollout["error"], found.rollout["status"]) == (error, "program_error" if error else "ok")


def test_a_call_that_two_layers_logged_is_one_row_and_the_other_record_is_told_of(encoder: Encoder) -> None:
    inner = replace(said("b", 11, 14), parent="a")
    found = made(encoder, ROOT, said("a", 10), inner, said("c", 30))
    assert places(found) == [("m", 0, 0, False), ("m", 1, 0, False)]
    assert [(row["span"], row["reason"]) for row in found.left_out] == [("b", "further_record_of_a_call")]
    assert found.trace["calls"] == 3


def test_a_span_that_was_logged_several_times_counts_once_with_the_most_that_is_known(encoder: Encoder) -> None:
    early = said("a", 10, 10, call=Call(SAID))
    late = said("a", 10, 20, call=Call(SAID, "the end"))
    for order in ((early, late, late), (late, early, late)):
        found = made(encoder, ROOT, *order)
        assert [row["completion"] for row in found.invocations] == ["the end"]
        assert found.repeated == 2
        assert found.trace["spans"] == 2


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([ROOT, replace(ROOT, span="other"), said("a", 10)], "several_roots"),
        ([replace(said("a", 10), parent="x"), replace(said("b", 20), parent="y")], "several_roots"),
        ([replace(said("a", 10), parent="b"), replace(said("b", 20), parent="a")], "no_root"),
        ([ROOT], "no_calls"),
        ([replace(ROOT, inputs={"other": 1, "more": 2}), said("a", 10)], "unknown_inputs"),
        (
            [replace(ROOT, inputs=None), said("a", 10, call=Call(({"role": "system", "content": "x"},), "y"))],
            "no_input",
        ),
        ([ROOT, said("a", 10, module=None)], "all_calls_left_out"),
    ],
)
def test_a_trace_that_cannot_be_a_rollout_says_why(encoder: Encoder, spans: list[Span], reason: str) -> None:
    found = made(encoder, *spans)
    assert (found.rollout, found.trace["reason"]) == (None, reason)


def test_calls_under_one_parent_that_was_not_exported_are_one_trace(encoder: Encoder) -> None:
    spans = [replace(said("a", 10), parent="gone"), replace(said("b", 20), parent="gone")]
    found = made(encoder, *spans)
    assert found.inputs == {"question": "hi"}  # what the user says first
    assert len(found.invocations) == 2
    assert found.rollout is not None
    assert found.rollout["output"] is None


def test_a_trace_with_a_span_that_could_not_be_read_is_left_out(encoder: Encoder) -> None:
    found = made(encoder, ROOT, said("a", 10), refused=(Refused("broken", "x", "file", "t"),))
    assert found.trace["reason"] == "broken_spans"


def test_what_a_cache_answered_is_no_sample(encoder: Encoder) -> None:
    found = made(encoder, ROOT, said("a", 10, call=Call(SAID, "yes", cached=True)), said("b", 20))
    assert [row["reason"] for row in found.left_out] == ["cached"]
    assert places(found) == [("m", 0, 0, False)]


def test_modules_come_from_rules_before_agents_and_never_from_two_rules(encoder: Encoder) -> None:
    agent = Span("t", "agent", "root", "agent", agent="writer", start=5, end=90)
    call = replace(said("a", 10, module=None), parent="agent")
    assert [row["module"] for row in made(encoder, ROOT, agent, call).invocations] == ["writer"]
    brief = {"module": "short", "system": "brief"}
    assert [row["module"] for row in made(encoder, ROOT, agent, call, modules=(brief,)).invocations] == ["short"]
    both = made(encoder, ROOT, agent, call, modules=(brief, {"module": "other", "agent": "writer"}))
    assert [row["reason"] for row in both.left_out] == ["ambiguous_module"]
    unnamed = made(encoder, ROOT, agent, call, names="rules")
    assert [row["reason"] for row in unnamed.left_out] == ["no_module"]


@pytest.mark.parametrize(
    ("scores", "section", "reward", "reason"),
    [
        ([("a", 0.0)], {}, 0.0, None),
        ([], {}, None, "no_score"),
        ([("a", 1.0), ("b", 0.0)], {}, None, "several_scores"),
        ([("a", 1.0), ("b", 0.0)], {"reward": "b"}, 0.0, None),
        ([("a", 1.0), ("b", 0.5)], {"reward": {"a": 1.0, "b": 2.0}}, 2.0, None),
        ([("a", 1.0)], {"reward": {"a": 1.0, "b": 2.0}}, None, "no_score"),
        ([("a", None)], {}, None, "score_missing"),
        ([("a", 1.0), ("a", 1.0)], {}, 1.0, None),
        ([("a", 1.0), ("a", 0.0)], {}, None, "contradicting_scores"),
        ([("a", 1.0), ("a", 0.0)], {"repeated": "mean"}, 0.5, None),
        ([("a", 1e9)], {}, None, "score_out_of_range"),
    ],
)
def test_the_reward_is_what_the_recipe_makes_of_the_scores(
    encoder: Encoder,
    scores: list[tuple[str, float | None]],
    section: dict[str, Any],
    reward: float | None,
    reason: str | None,
) -> None:
    logged = tuple(Score("t", name, value, source=str(place)) for place, (name, value) in enumerate(scores))
    found = made(encoder, ROOT, said("a", 10), scores=logged, **section)
    assert found.rollout is not None
    assert (found.rollout["reward"], found.trace["reward_reason"]) == (reward, reason)


def test_a_score_of_one_step_is_not_that_of_the_whole(encoder: Encoder) -> None:
    found = made(
        encoder, ROOT, said("a", 10), scores=(Score("t", "s", 1.0, span="a"), Score("t", "s", 0.0, span="root"))
    )
    assert found.rollout is not None
    assert found.rollout["reward"] == 0.0


def test_a_program_that_failed_has_no_reward_but_its_error(encoder: Encoder) -> None:
    found = made(encoder, replace(ROOT, error="boom"), said("a", 10), scores=(Score("t", "s", 1.0),))
    assert found.rollout is not None
    assert (found.rollout["status"], found.rollout["error"], found.rollout["reward"]) == ("program_error", "boom", None)


@pytest.mark.parametrize(
    ("inputs", "section", "expected"),
    [
        ({"question": "a", "other": 1}, {}, "a"),
        ("a", {}, "a"),
        ('{"question": "a"}', {}, "a"),
        ({"args": [], "kwargs": {"question": "a"}}, {}, "a"),
        ({"text": "a"}, {}, "a"),
        ({"messages": [{"content": "a"}]}, {"inputs": {"question": "messages.0.content"}}, "a"),
        ({"deep": '{"more": [{"q": "a"}]}'}, {"inputs": {"question": "deep.more.0.q"}}, "a"),
    ],
)
def test_the_programs_input_is_found_in_what_the_root_was_given(
    encoder: Encoder, inputs: Any, section: dict[str, Any], expected: str
) -> None:
    assert made(encoder, replace(ROOT, inputs=inputs), said("a", 10), **section).inputs == {"question": expected}


def test_ids_are_trusted_only_as_far_as_they_go(encoder: Encoder) -> None:
    whole = encoder.tokens(Call(SAID, "yes", finish_reason="stop"), None)
    assert (whole.fidelity, whole.finish) == ("text", "stop")
    prompt, ids = whole.prompt_ids, whole.completion_ids
    assert prompt
    assert ids
    logged = Call(
        SAID, "yes", prompt_ids=prompt, completion_ids=ids, logprobs=(-1.0,) * len(ids), logprob_kind="processed"
    )
    assert encoder.tokens(logged, "policy").fidelity == "exact"
    for changed, policy, fidelity, reason in (
        (logged, None, "ids", "no_policy"),
        (replace(logged, logprob_kind=None), "p", "ids", "logprob_kind_unknown"),
        (replace(logged, logprobs=None), "p", "ids", "no_logprobs"),
        (replace(logged, logprobs=(-1.0,)), "p", "ids", "lengths_differ"),
        (replace(logged, completion="no"), "p", "partial", "ids_do_not_decode"),
        (replace(logged, completion_ids=(10**6,)), "p", "partial", "ids_out_of_vocabulary"),
        (replace(logged, completion_ids=None), "p", "text", "no_ids"),
        (replace(logged, choices=3), "p", "partial", "several_choices"),
        (Call(SAID, "yes", tools=True), "p", "partial", "tool_calls"),
        (Call(SAID, "yes", reasoning="hm"), "p", "partial", "hidden_reasoning"),
        (Call(SAID, "", finish_reason="tool_call"), "p", "partial", "tool_calls"),
        (Call(SAID, "yes", unseen=True), "p", "partial", "prompt_not_logged"),
        (Call(SAID, "yes", finish_reason="content_filter"), "p", "partial", "cut_off"),
        (Call(SAID, "yes", finish_reason="SAFETY"), "p", "partial", "cut_off"),
        (Call(SAID, "\u4e2d", finish_reason="stop"), "p", "partial", "not_encoded"),
        (Call(SAID), "p", "partial", "no_completion"),
    ):
        found = encoder.tokens(changed, policy)
        assert (found.fidelity, found.reason) == (fidelity, reason)
    for reason in ("length", "MAX_TOKENS", "FinishReason.MAX_TOKENS", "model_length"):
        assert encoder.tokens(Call(SAID, "yes", finish_reason=reason), None).finish == "length"


SPANS = st.builds(
    Span,
    trace=st.sampled_from(["t", "u"]),
    span=st.sampled_from("abcd"),
    parent=st.sampled_from([None, "a", "b", "gone"]),
    kind=st.sampled_from(["llm", "chain", "other"]),
    start=st.sampled_from([None, 1, 2, 3]),
    end=st.sampled_from([None, 2, 4]),
    error=st.sampled_from([None, "boom"]),
    module=st.sampled_from([None, "m"]),
    agent=st.sampled_from([None, "n"]),
    inputs=st.sampled_from([None, "q", {"question": "q"}]),
    call=st.sampled_from(
        [None, Call(()), Call(SAID), Call(SAID, "yes"), Call(SAID, "no", cached=True), Call(SAID, "on", streamed=True)]
    ),
)


@settings(max_examples=60, deadline=None)
@given(spans=st.lists(SPANS, min_size=1, max_size=8), seed=st.integers(0, 10), again=st.integers(0, 3))
def test_rows_depend_on_neither_the_order_nor_the_repetition_of_records(
    tmp_path_factory: pytest.TempPathFactory, encoder: Encoder, spans: list[Span], seed: int, again: int
) -> None:
    shuffled = [*spans, *spans[:again]]
    random.Random(seed).shuffle(shuffled)
    assembler = Assembler(["question"], IngestSection(), encoder, {"tokenizer": "T", "template": "P"})
    results = []
    for number, items in enumerate((spans, shuffled)):
        spool = Spool(tmp_path_factory.mktemp("spool") / str(number))
        for item in items:
            assert spool.add(item, "f") is None
        found = list(assembler.each(spool.traces()))
        rows = [(one.trace, one.rollout, one.invocations, one.left_out, one.inputs) for one in found]
        results.append((rows, content_of(sorted(map(entry_of, spool.traces())))))
    assert results[0] == results[1]
    every = {(span.trace, span.span) for span in spans if span.kind == "llm"}
    kept = sum(len(one[2]) + len(one[3]) for one in results[0][0] if one[1] is not None)
    told = sum(one[0]["calls"] for one in results[0][0] if one[1] is not None)
    assert kept == told <= len(every) + len(spans)  # calls in = calls used + calls left out with a reason


def test_a_value_that_cannot_be_stored_is_refused_and_its_neighbours_stay(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    assert spool.add(ROOT, "f") is None
    refused = spool.add(said("a", 10, call=Call(SAID, "half \ud83d")), "f")
    assert refused is not None
    assert refused.reason == "not_storable"
    assert spool.add(replace(ROOT, trace="other"), "f") is None
    found = {trace.id: trace for trace in spool.traces()}
    assert len(found["t"].refused) == 1
    assert not found["other"].refused


def test_a_module_of_another_model_leaves_the_policy_of_the_others_known(encoder: Encoder) -> None:
    sampled, judge = said("a", 10, policy="p"), said("j", 20, module="judge")
    found = made(encoder, ROOT, sampled, judge)
    assert found.rollout is not None
    assert found.rollout["policy"] == "p"
    assert [row["trainable"] for row in found.invocations] == [True, False]
    for other in (said("b", 30), said("b", 30, policy="q"), said("b", 30, policy="q", module="n")):
        found = made(encoder, ROOT, sampled, judge, other)
        assert found.rollout is not None
        assert found.rollout["policy"] is None
        assert all(row["trainable"] for row in found.invocations)
