from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
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


@pytest.mark.parametrize("args", [{"quality": "bleu"}, {"quality": "judge"}, {"judge": {"url": "x", "model": "y"}}])
def test_a_measure_of_quality_that_is_not_set_up_is_refused(args: dict[str, Any]):
    with pytest.raises(RecipeError, match="metric_args"):
        papillon_metric.metric(EXAMPLE, {"request": "x", "response": "y"}, [], **args)


@pytest.fixture
def judge() -> Iterator[Any]:
    """An OpenAI-compatible endpoint that answers with the texts in its list `answers` and keeps the questions."""
    state = SimpleNamespace(answers=[], questions=[])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            state.questions.append(body["messages"][0]["content"])
            message = {"role": "assistant", "content": state.answers.pop(0)}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            data = json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": choices})
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(data.encode())

        def log_message(self, *_: Any) -> None:
            """Keep quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.args = {"url": f"http://127.0.0.1:{server.server_port}/v1", "model": "m"}
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("answers", "quality"),
    [(["Yes", "no"], 1.0), (["yes.", "yes"], 1.0), (["No", "No"], 1.0), (["no", "Yes"], 0.0)],
)
def test_the_judge_is_asked_in_both_orders(judge: Any, answers: list[str], quality: float):
    judge.answers = list(answers)
    output = {"request": "write a note", "response": "OURS"}
    parts = papillon_metric.metric(EXAMPLE, output, [], quality="judge", judge=judge.args)
    assert parts == {"score": (quality + 1) / 2, "quality": quality, "leakage": 0, "leaked": 0}
    first, second = judge.questions
    assert first.index("OURS") < first.index("by Ann Lee")
    assert second.index("OURS") > second.index("by Ann Lee")


def test_a_judge_that_says_neither_yes_nor_no_is_an_error_that_quotes_nothing(judge: Any):
    judge.answers = ["Ann Lee?"]
    with pytest.raises(ValueError, match="expected yes or no") as caught:
        papillon_metric.metric(EXAMPLE, {"request": "x", "response": "y"}, [], quality="judge", judge=judge.args)
    assert "Ann" not in str(caught.value)
