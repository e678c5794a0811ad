from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.tasks import papillon, papillon_metric
from schemas.errors import ParseError, RecipeError

EXAMPLE = SimpleNamespace(
    inputs={"query": "I am Ann Lee of Oslo, write a note"},
    labels={"response": "a note by Ann Lee", "pii_units": ["ann lee", "oslo"]},
)


def run(craft: str, aggregate: str, **args: Any) -> tuple[Any, list[tuple[str, list[dict[str, str]], dict[str, Any]]]]:
    calls: list[tuple[str, list[dict[str, str]], dict[str, Any]]] = []
    answers = {"craft": craft, "untrusted": "a note", "aggregate": aggregate}

    async def call(module: str, messages: list[dict[str, str]], *, parse: Any = None, **options: Any) -> Any:
        calls.append((module, messages, options))
        text = answers[module]
        return SimpleNamespace(text=text, value=parse(text) if parse else None)

    return asyncio.run(papillon.program(**args)(EXAMPLE.inputs, call)), calls


def test_the_untrusted_lm_sees_the_request_and_nothing_else():
    output, calls = run(" write a note ", "a note by Ann Lee")
    assert [module for module, _, _ in calls] == ["craft", "untrusted", "aggregate"]
    assert [options.get("lm", "student") for _, _, options in calls] == ["student", "untrusted", "student"]
    assert calls[1][1] == [{"role": "user", "content": "write a note"}]
    assert output == {"request": "write a note", "response": "a note by Ann Lee"}


def test_the_answer_is_made_from_the_query_and_the_untrusted_answer():
    _, calls = run("write a note", "done")
    last = calls[-1][1][-1]["content"]
    assert EXAMPLE.inputs["query"] in last
    assert last.endswith("a note")


def test_each_module_may_have_its_own_length():
    _, calls = run("write a note", "done", max_new_tokens={"craft": 7})
    assert [options.get("max_new_tokens") for _, _, options in calls] == [7, None, None]
    with pytest.raises(RecipeError, match="no module untrusted"):
        papillon.program(max_new_tokens={"untrusted": 7})


@pytest.mark.parametrize(("craft", "aggregate", "field"), [(" ", "x", "request"), ("x", "...", "response")])
def test_a_completion_without_a_word_does_not_parse(craft: str, aggregate: str, field: str):
    with pytest.raises(ParseError) as caught:
        run(craft, aggregate)
    assert caught.value.expected == (field,)


@pytest.mark.parametrize(
    ("request_text", "units", "expected"),
    [
        ("A note for ANN-LEE of Oslo!", ["ann lee", "oslo"], (2, 2)),
        ("A note for Joann Leeds", ["ann lee", "oslo"], (0, 2)),
        ("a note for Oslo", ["oslo", "Oslo ", "ann"], (1, 2)),
        ("anything", [], (0, 0)),
        ("anything", ["?!", ""], (0, 0)),
    ],
)
def test_leaks_are_private_units_found_as_whole_words(request_text: str, units: list[str], expected: tuple[int, int]):
    assert papillon_metric.leaks(request_text, units) == expected


@pytest.mark.parametrize(
    ("response", "reference", "score"),
    [
        ("the cat sat", "The cat sat.", 1.0),
        ("a b c d", "a x c", 4 / 7),
        ("b a", "a b", 0.5),
        ("", "a", 0.0),
        ("x", "y", 0),
    ],
)
def test_rouge_l_is_the_f1_of_the_longest_common_subsequence(response: str, reference: str, score: float):
    assert papillon_metric.rouge_l(response, reference) == pytest.approx(score)


def test_the_score_is_half_quality_and_half_what_was_kept_private():
    output = {"request": "write a note for Oslo", "response": "a note by Ann Lee"}
    assert papillon_metric.metric(EXAMPLE, output, []) == {"score": 0.75, "quality": 1, "leakage": 0.5, "leaked": 1}


@pytest.mark.parametrize("args", [{"quality": "bleu"}, {"quality": "judge"}])
def test_a_measure_of_quality_that_is_not_set_up_is_refused(args: dict[str, Any]):
    with pytest.raises(RecipeError, match="metric_args"):
        papillon_metric.metric(EXAMPLE, {"request": "x", "response": "y"}, [], **args)


def judged(answers: list[str], output: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    """What the metric says, and what it asked a judge that answers with these texts."""
    questions: list[str] = []

    def call(module: str, messages: list[dict[str, str]], **sampling: Any) -> Any:
        assert (module, sampling["temperature"]) == ("verdict", 0.0)
        questions.append(messages[0]["content"])
        return SimpleNamespace(text=answers[len(questions) - 1])

    return papillon_metric.metric(EXAMPLE, output, [], quality="judge", call=call), questions


@pytest.mark.parametrize(
    ("answers", "quality"),
    [(["Yes", "no"], 1.0), (["yes.", "yes"], 1.0), (["No", "No"], 1.0), (["no", "Yes"], 0.0)],
)
def test_the_judge_is_asked_in_both_orders(answers: list[str], quality: float):
    parts, (first, second) = judged(answers, {"request": "write a note", "response": "OURS"})
    assert parts == {"score": (quality + 1) / 2, "quality": quality, "leakage": 0, "leaked": 0}
    assert first.index("OURS") < first.index("by Ann Lee")
    assert second.index("OURS") > second.index("by Ann Lee")


def test_a_judge_that_says_neither_yes_nor_no_is_an_error_that_quotes_nothing():
    with pytest.raises(ValueError, match="expected yes or no") as caught:
        judged(["Ann Lee?"], {"request": "x", "response": "y"})
    assert "Ann" not in str(caught.value)


def test_the_judge_is_an_lm_of_the_recipe_whose_calls_are_recorded():
    from schemas.recipe_data import MetricSection, OtherLM
    from stages.programs.session import Judging
    from tests.test_stages.programs_kit import CharEngine, run_one

    def metric(example: Any, output: Any, calls: Any, call: Any = None) -> Any:
        return papillon_metric.metric(EXAMPLE, output, calls, quality="judge", call=call)

    finished = run_one(
        lambda inputs, call: {"request": "write a note", "response": "OURS"},
        CharEngine(lambda *_: "Yes"),
        metric,
        lms={"judge": OtherLM()},
        judging=Judging(MetricSection(lm="judge")),
    )
    assert finished.outcome.score == 1.0, finished.outcome.error
    assert [(row["module"], row["lm"]) for row in finished.judge_calls] == [("verdict", "judge")] * 2
