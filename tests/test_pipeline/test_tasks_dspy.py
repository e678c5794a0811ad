"""The tasks as DSPy programs."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError

from pipeline.tasks import banking77, banking77_dspy
from schemas.errors import RecipeError

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
