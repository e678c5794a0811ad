"""The tasks as DSPy programs."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError

from pipeline.tasks import banking77, banking77_dspy, papillon, papillon_dspy
from schemas.errors import RecipeError
from schemas.recipe_data import OtherLM
from stages.engines.interface import Request
from stages.programs.load import load_program
from stages.programs.run import Job
from tests.test_stages.programs_kit import CharEngine, recipe_of, run_jobs, session_of

EIGHT = tomllib.loads((Path(__file__).parents[2] / "data" / "banking77_8" / "recipe.toml").read_text())["program"]


def plain_messages(args: dict[str, Any], text: str) -> list[dict[str, str]]:
    sent: list[dict[str, str]] = []

    async def call(module: str, messages: list[dict[str, str]], **_: Any) -> Any:
        sent.extend(messages)
        return SimpleNamespace(value="x")

    asyncio.run(banking77.program(**args)({"text": text}, call))
    return sent


def test_banking77_sends_the_prompts_of_the_plain_program_word_for_word():
    made = banking77_dspy.program(**EIGHT["args"])
    predictor = made.classify
    sent = made.adapter.format(predictor.signature, predictor.demos, {"text": "Where is my card?"})
    assert sent == plain_messages(EIGHT["args"], "Where is my card?")
    assert len(sent) == 18


@pytest.mark.parametrize("completion", ["age_limit", " Age limit.\n", "AGE-LIMIT"])
def test_an_intent_is_known_however_it_is_spelt(completion: str):
    made = banking77_dspy.program(intents=["age_limit", "card_arrival"])
    assert made.adapter.parse(made.classify.signature, completion) == {"intent": "age_limit"}


@pytest.mark.parametrize("completion", ["", "It is age_limit", "change_pin"])
def test_what_names_no_intent_of_the_recipe_does_not_parse(completion: str):
    made = banking77_dspy.program(intents=["age_limit", "card_arrival"])
    with pytest.raises(AdapterParseError):
        made.adapter.parse(made.classify.signature, completion)


def test_with_reasoning_the_answer_is_typed_by_the_intents():
    made = banking77_dspy.program(
        intents=["age_limit"], demos=[{"text": "t", "intent": "age_limit", "reasoning": "r"}], reasoning=True
    )
    [predictor] = made.predictors()
    assert list(predictor.signature.output_fields) == ["reasoning", "intent"]
    assert predictor.demos[0].reasoning == "r"
    with pytest.raises(AdapterParseError):
        dspy.ChatAdapter().parse(predictor.signature, "[[ ## reasoning ## ]]\nx\n\n[[ ## intent ## ]]\ncard_arrival")


@pytest.mark.parametrize("args", [{"intents": []}, {"demos": [{"text": "t", "intent": "no such"}]}])
def test_what_the_plain_program_refuses_is_refused(args: dict[str, Any]):
    with pytest.raises(RecipeError, match=r"program\.args"):
        banking77_dspy.program(**args)


def run_papillon(tmp_path: Path, **args: Any) -> tuple[Any, list[tuple[str, Request]]]:
    """One run of the program with scripted LMs; returns it, and every prompt with its request."""
    seen: list[tuple[str, Request]] = []

    def answer(prompt: str, request: Request) -> str:
        seen.append((prompt, request))
        return "a note" if prompt == "write a note\n" else "write a note" if papillon.CRAFT in prompt else "by Ann Lee"

    names = ("pipeline.tasks.papillon_dspy:program", "pipeline.tasks.papillon_dspy:metric")
    program = load_program(recipe_of(*names, program={"args": args}), tmp_path)
    labels = {"response": "by Ann Lee", "pii_units": ["ann lee"]}
    job = Job("e0", 0, "r0", 1, json.dumps({"query": "I am Ann Lee"}), json.dumps(labels), None)
    [finished] = run_jobs(program, [job], session_of(CharEngine(answer), lms={"untrusted": OtherLM()}))
    return finished, seen


def test_papillon_tells_the_untrusted_lm_the_request_alone_and_does_not_train_it(tmp_path: Path):
    finished, seen = run_papillon(tmp_path)
    assert [row["module"] for row in finished.invocations] == ["craft", "untrusted.answer", "aggregate"]
    assert [row["trainable"] for row in finished.invocations] == [True, False, True]
    assert seen[1][0] == "write a note\n"
    assert finished.outcome.score == 1.0
    assert json.loads(finished.outcome.output) == {"request": "write a note", "response": "by Ann Lee"}


def test_papillon_has_the_demonstrations_of_the_plain_program_and_optimizers_see_its_two_modules(tmp_path: Path):
    _, seen = run_papillon(tmp_path)
    assert papillon.CRAFT_DEMOS[1][1] in seen[0][0]
    assert papillon.AGGREGATE_DEMOS[0][2] in seen[2][0]
    assert [name for name, _ in papillon_dspy.program().named_predictors()] == ["craft", "aggregate"]


def test_each_module_of_papillon_may_have_its_own_length(tmp_path: Path):
    _, seen = run_papillon(tmp_path, max_new_tokens={"craft": 7})
    assert [request.sampling.max_new_tokens for _, request in seen] == [7, OtherLM().max_new_tokens, 16]
    with pytest.raises(RecipeError, match="no module untrusted"):
        papillon_dspy.program(max_new_tokens={"untrusted": 7})
