from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.tasks import tiny
from schemas.errors import ParseError


@dataclass
class Script:
    """Answers each call with the next text of its module, as an engine that never varies would."""

    answers: dict[str, list[str]]
    prompts: list[tuple[str, str]] = field(default_factory=list)

    async def __call__(self, module: str, messages: list[dict[str, str]], *, parse: Any, inputs: Any) -> Any:
        self.prompts.append((module, messages[-1]["content"]))
        text = self.answers[module].pop(0)
        return SimpleNamespace(text=text, value=parse(text))


def run(answers: dict[str, list[str]]) -> tuple[dict[str, Any], Script]:
    script = Script(answers)
    return asyncio.run(tiny.program(max_steps=3)({"word": "lug"}, script)), script


@pytest.mark.parametrize(("plan", "steps"), [("abc", 1), ("a", 2), ("ab", 3)])
def test_the_plan_decides_how_often_the_second_module_runs(plan: str, steps: int):
    output, script = run({"plan": [plan], "step": ["ab"] * 3})
    assert len(output["steps"]) == steps
    assert [module for module, _ in script.prompts] == ["plan"] + ["step"] * steps


def test_a_step_is_shown_the_end_of_the_step_before_in_a_short_prompt():
    _, script = run({"plan": ["a"], "step": ["abcdefghijkl", "z"]})
    assert script.prompts[-1] == ("step", "step lug efghijkl")
    assert all(len(prompt) < 60 for _, prompt in script.prompts)


def test_a_plan_that_begins_with_a_mark_ends_the_run_early():
    with pytest.raises(ParseError) as caught:
        run({"plan": ["?a"], "step": []})
    assert caught.value.share == 0


@pytest.mark.parametrize(("text", "share"), [("", 0.0), ("12", 0.0), ("1a", 0.5), ("..", 0.5)])
def test_a_bad_step_says_which_share_of_it_parsed(text: str, share: float):
    with pytest.raises(ParseError) as caught:
        tiny.parse_step(text)
    assert caught.value.share == share


def test_the_reward_is_the_share_of_wanted_letters():
    example = SimpleNamespace(inputs={"word": "lug"}, labels={})
    assert tiny.metric(example, {"steps": ["ablu", "A."]}, []) == {"score": 2 / 6, "letters": 5 / 6, "steps": 2.0}
