from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.tasks import banking77
from pipeline.tasks.banking77_intents import INTENTS
from pipeline.tasks.text import normalise
from schemas.errors import ParseError, RecipeError

DEMO = {"text": "Where is it?", "intent": "card_arrival"}


def test_all_77_intents_stay_apart_when_normalised():
    assert len({normalise(intent) for intent in INTENTS}) == 77


@pytest.mark.parametrize("completion", ["card_arrival", " Card arrival.\n", "CARD-ARRIVAL"])
def test_an_intent_is_known_however_it_is_spelt(completion: str):
    assert banking77.program().parse(completion) == "card_arrival"


@pytest.mark.parametrize("completion", ["", "card", "card_arrival age_limit", "It is card_arrival", "no"])
def test_a_completion_that_is_no_intent_does_not_parse(completion: str):
    with pytest.raises(ParseError) as caught:
        banking77.program().parse(completion)
    assert caught.value.share == 0


def test_intents_outside_the_recipe_are_not_valid():
    with pytest.raises(ParseError):
        banking77.program(intents=["age_limit"]).parse("card_arrival")


@pytest.mark.parametrize(
    ("completion", "share"),
    [("card_arrival", 0.5), ("Intent: card_arrival", 0.5), ("Reasoning: hm\nIntent: what", 0.5), ("", 0.0)],
)
def test_with_reasoning_a_bad_completion_says_which_share_of_it_parsed(completion: str, share: float):
    with pytest.raises(ParseError) as caught:
        banking77.program(reasoning=True).parse(completion)
    assert caught.value.share == share


@pytest.mark.parametrize(
    "completion",
    ["Reasoning: late.\nIntent: card_arrival", "**Reasoning**: Intent: is it?\n**Intent:** `Card_Arrival`\n"],
)
def test_with_reasoning_the_last_intent_line_counts(completion: str):
    assert banking77.program(reasoning=True).parse(completion) == "card_arrival"


def test_demonstrations_are_chat_turns_and_the_message_comes_last():
    sent: list[Any] = []

    async def call(module: str, messages: list[dict[str, str]], *, parse: Any, inputs: Any) -> Any:
        sent.append((module, messages, inputs))
        return SimpleNamespace(value=parse("age_limit"))

    output = asyncio.run(banking77.program(demos=[DEMO])({"text": "How old must I be?"}, call))
    (module, messages, inputs), *_ = sent
    assert output == {"intent": "age_limit"}
    assert (module, inputs) == ("classify", {"text": "How old must I be?"})
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[2]["content"] == "card_arrival"
    assert messages[3]["content"] == "How old must I be?"


@pytest.mark.parametrize("demo", [{"text": "Where?"}, {**DEMO, "intent": "weather"}, {**DEMO, "reasoning": "so"}])
def test_a_bad_demonstration_is_refused_with_its_place(demo: dict[str, str]):
    with pytest.raises(RecipeError, match=r"program\.args\.demos\[0\]"):
        banking77.program(demos=[demo])


@pytest.mark.parametrize(("intent", "score"), [("age_limit", 1.0), ("card_arrival", 0.0)])
def test_the_score_is_1_for_the_right_intent_and_0_for_another(intent: str, score: float):
    example = SimpleNamespace(inputs={}, labels={"intent": "age_limit"})
    assert banking77.metric(example, {"intent": intent}, []) == {"score": score, "right": score}
