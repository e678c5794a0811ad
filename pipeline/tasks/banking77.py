"""Banking77: name the intent of a bank customer's message. One module, `classify`.

Two ways of answering. Plain (the default): the completion is the intent alone, after demonstrations given as chat
turns, which is what a small model can follow. With `reasoning`: a `Reasoning:` part and then an `Intent:` line, the
chain of thought of larger models. A completion that names no known intent does not parse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.tasks.banking77_intents import INTENTS
from pipeline.tasks.call import Call, Example, chat
from pipeline.tasks.text import normalise
from schemas.errors import ParseError, RecipeError

TASK = "You sort the messages of bank customers by intent."
PLAIN = "Answer with the name of the intent and nothing else."
REASONED = "First write `Reasoning:` and think it over briefly, then end with one line `Intent:` and its name."
_INTENT = re.compile(r"^\W*intent\W*?:", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """Classifies `text` as one of `intents`; the output is the intent's name."""

    intents: tuple[str, ...]
    demos: tuple[tuple[str, str], ...]
    reasoning: bool
    modules: tuple[str, ...] = ("classify",)

    async def __call__(self, inputs: dict[str, Any], call: Call) -> dict[str, str]:
        """Run on one message."""
        text = str(inputs["text"])
        system = f"{TASK} The intents are: {', '.join(self.intents)}. {REASONED if self.reasoning else PLAIN}"
        messages = chat(system, list(self.demos), text)
        answer = await call("classify", messages, parse=self.parse, inputs={"text": text})
        return {"intent": answer.value}

    def parse(self, completion: str) -> str:
        """The intent that a completion names.

        Raises:
            ParseError: when it names none; with `reasoning`, expected are the fields `reasoning` and `intent`.
        """
        known = {normalise(intent): intent for intent in self.intents}
        if not self.reasoning:
            found = known.get(normalise(completion))
            if found is None:
                raise ParseError([], ["intent"])
            return found
        thought, answer = _split(completion)
        fields = {"reasoning": bool(normalise(thought)), "intent": normalise(answer) in known}
        if not all(fields.values()):
            raise ParseError([name for name, there in fields.items() if there], list(fields))
        return known[normalise(answer)]


def program(
    *,
    intents: Sequence[str] = INTENTS,
    demos: Sequence[Mapping[str, str]] = (),
    reasoning: bool = False,
) -> Program:
    """The classifier.

    Args:
        intents: the intents to choose from.
        demos: demonstrations with `text` and `intent` (and `reasoning`, where that is on), shown as chat turns.
        reasoning: whether to ask for a chain of thought first.

    Raises:
        RecipeError: for a demonstration without its fields or of an unknown intent.
    """
    shots: list[tuple[str, str]] = []
    for index, demo in enumerate(demos):
        wanted = {"text", "intent", "reasoning"} if reasoning else {"text", "intent"}
        if set(demo) != wanted or demo["intent"] not in intents:
            raise RecipeError(
                f"program.args.demos[{index}]: expected the keys {', '.join(sorted(wanted))} and one of the "
                f"{len(intents)} intents, got {dict(demo)}"
            )
        answer = f"Reasoning: {demo['reasoning']}\nIntent: {demo['intent']}" if reasoning else demo["intent"]
        shots.append((demo["text"], answer))
    return Program(tuple(intents), tuple(shots), reasoning)


def metric(example: Example, output: Mapping[str, Any], _calls: Sequence[Any]) -> dict[str, float]:
    """1 for the right intent, 0 for another; completions that name no intent never get here (see `group`)."""
    right = float(output["intent"] == example.labels["intent"])
    return {"score": right, "right": right}


def _split(completion: str) -> tuple[str, str]:
    """What stands before the last `Intent:` line, without the word `Reasoning`, and what stands after it."""
    marks = list(_INTENT.finditer(completion))
    if not marks:
        return completion, ""
    thought = re.sub(r"^\W*reasoning\W*?:", "", completion[: marks[-1].start()], flags=re.IGNORECASE)
    return thought, completion[marks[-1].end() :]
