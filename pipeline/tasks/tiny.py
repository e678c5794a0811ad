"""A rule-made two-module task with a loop, for tests and first tries on a tiny random model.

`plan` writes anything; its length decides how often `step` runs (one to `max_steps` times). The reward is the share of
wanted characters (lower-case letters that are not in the example's word) among all that `step` wrote, so that a
model which merely shifts its character frequencies earns more. A plan must begin with a letter or a digit, a step
must hold a letter and not begin with a digit: a random model misses that now and then, so runs end early and groups
have unequal sizes.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.tasks.call import Call, Example
from schemas.errors import ParseError


def parse_plan(text: str) -> int:
    """The number that a plan stands for: its count of characters.

    Raises:
        ParseError: unless it begins with a letter or a digit.
    """
    if not text[:1].isalnum():
        raise ParseError([], ["plan"])
    return len(text.strip())


def parse_step(text: str) -> str:
    """A step as it is.

    Raises:
        ParseError: unless it has a letter and begins with something other than a digit: one expected field each.
    """
    found = {"letter": any(map(str.isalpha, text)), "start": bool(text) and not text[0].isdigit()}
    if not all(found.values()):
        raise ParseError([name for name, there in found.items() if there], list(found))
    return text


@dataclass(frozen=True)
class Program:
    """`plan` once, then `step` as often as the plan says, each step shown the end of the one before."""

    max_steps: int
    modules: tuple[str, ...] = ("plan", "step")

    async def __call__(self, inputs: dict[str, Any], call: Call) -> dict[str, Any]:
        """Run on one word; the output is the list of steps."""
        word = str(inputs["word"])
        plan = await call("plan", _user(f"plan {word}"), parse=parse_plan, inputs={"word": word})
        steps: list[str] = []
        for _ in range(1 + plan.value % self.max_steps):
            last = steps[-1][-8:] if steps else ""
            seen = {"word": word, "last": last}
            step = await call("step", _user(f"step {word} {last}"), parse=parse_step, inputs=seen)
            steps.append(step.value)
        return {"steps": steps}


def program(*, max_steps: int = 3) -> Program:
    """The program, with at most `max_steps` steps."""
    return Program(max_steps)


def metric(example: Example, output: Mapping[str, Any], _calls: Sequence[Any]) -> dict[str, float]:
    """Share of wanted characters in all steps; `letters` is the share of letters of any kind."""
    written = "".join(output["steps"])
    wanted = set(string.ascii_lowercase) - set(example.inputs["word"])
    return {
        "score": sum(character in wanted for character in written) / len(written),
        "letters": sum(map(str.isalpha, written)) / len(written),
        "steps": float(len(output["steps"])),
    }


def _user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]
