"""Banking77 as a DSPy program, for prompt optimizers: the same task, metric and plain prompts as `banking77`.

Plain (the default): the prompts of `pipeline.tasks.banking77`, word for word. With `reasoning`: DSPy's own format and a
chain of thought, the intents as the type of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import dspy
from dspy.utils.exceptions import AdapterParseError

from pipeline.tasks import banking77
from pipeline.tasks.banking77_intents import INTENTS
from pipeline.tasks.text import normalise
from schemas.errors import RecipeError
from stages.programs.plain_adapter import PlainAdapter

metric = banking77.metric
"""The same."""


class IntentAdapter(PlainAdapter):
    """Plain fields; an intent is known however it is spelt, and anything else does not parse."""

    def __init__(self, intents: Sequence[str]) -> None:
        super().__init__()
        self.known = {normalise(intent): intent for intent in intents}

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        """The field `intent` of a completion.

        Raises:
            AdapterParseError: when it names none.
        """
        if "intent" not in signature.output_fields:
            return super().parse(signature, completion)  # an optimizer's own question
        intent = self.known.get(normalise(completion))
        if intent is None:
            raise AdapterParseError("IntentAdapter", signature, completion, message="no known intent", parsed_result={})
        return {"intent": intent}


class Classifier(dspy.Module):
    """Classifies `text`; the output has `intent`."""

    def __init__(self, intents: tuple[str, ...], demos: Sequence[Mapping[str, str]], *, reasoning: bool) -> None:
        super().__init__()
        if reasoning:
            fields = {"text": (str, dspy.InputField()), "intent": (Literal[intents], dspy.OutputField())}
            self.classify = dspy.ChainOfThought(dspy.Signature(fields, banking77.TASK))
        else:
            self.adapter = IntentAdapter(intents)
            listed = f"{banking77.TASK} The intents are: {', '.join(intents)}. {banking77.PLAIN}"
            self.classify = dspy.Predict(dspy.Signature("text -> intent", listed))
        for predictor in self.predictors():
            predictor.demos = [dspy.Example(demo).with_inputs("text") for demo in demos]

    def forward(self, text: str) -> Any:
        """Run on one message."""
        return self.classify(text=text)


def program(
    *,
    intents: Sequence[str] = INTENTS,
    demos: Sequence[Mapping[str, str]] = (),
    reasoning: bool = False,
) -> Classifier:
    """The classifier; arguments as those of `banking77.program`.

    Raises:
        RecipeError: for no intents, or a demonstration that `banking77.program` refuses.
    """
    if not intents:
        raise RecipeError("program.args.intents is empty, expected the intents to choose from")
    banking77.program(intents=intents, demos=demos, reasoning=reasoning)
    return Classifier(tuple(intents), demos, reasoning=reasoning)
