"""PAPILLON as a DSPy program, for prompt optimizers: the same task and metric as `papillon`, in plain fields.

`craft` and `aggregate` are its modules. The untrusted LM is asked by a predictor of its own in a part that DSPy's
optimizers leave as it is: its prompt is the request alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dspy

from pipeline.tasks import papillon, papillon_metric
from stages.programs.dspy_engine import program_lm
from stages.programs.plain_adapter import PlainAdapter

metric = papillon_metric.metric
"""The same."""


class RequestAdapter(PlainAdapter):
    """Plain fields; what goes to the untrusted LM is the request alone, without a system turn."""

    def format(self, signature: Any, demos: list[Any], inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """The messages of a call."""
        if "outside_request" in signature.input_fields:
            return [{"role": "user", "content": str(inputs["outside_request"])}]
        messages: list[dict[str, Any]] = super().format(signature, demos, inputs)
        return messages


class Untrusted(dspy.Module):
    """The LM that must not be told what is private."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("outside_request -> answer")
        self.answer.lm = program_lm(papillon.UNTRUSTED)
        self._compiled = True  # DSPy's mark of a frozen module

    def forward(self, request: str) -> str:
        """Its answer to a request."""
        return str(self.answer(outside_request=request).answer)


class Papillon(dspy.Module):
    """Answers `query`; the output has `response` and the `request` that went out."""

    def __init__(self, lengths: Mapping[str, int]) -> None:
        super().__init__()
        own = {module: {"max_tokens": length} for module, length in lengths.items()}
        self.adapter = RequestAdapter()
        self.craft = dspy.Predict(dspy.Signature("query -> request", papillon.CRAFT), **own.get("craft", {}))
        self.craft.demos = [
            dspy.Example(query=query, request=request).with_inputs("query") for query, request in papillon.CRAFT_DEMOS
        ]
        self.untrusted = Untrusted()
        self.aggregate = dspy.Predict(
            dspy.Signature("message, outside_answer -> response", papillon.AGGREGATE), **own.get("aggregate", {})
        )
        self.aggregate.demos = [
            dspy.Example(message=message, outside_answer=answer, response=response).with_inputs(
                "message", "outside_answer"
            )
            for message, answer, response in papillon.AGGREGATE_DEMOS
        ]

    def forward(self, query: str) -> dspy.Prediction:
        """Run on one query."""
        request = self.craft(query=query).request
        answer = self.untrusted(request)
        response = self.aggregate(message=query, outside_answer=answer).response
        return dspy.Prediction(response=response, request=request)


def program(*, max_new_tokens: Mapping[str, int] | None = None) -> Papillon:
    """The pipeline; arguments as those of `papillon.program`.

    Raises:
        RecipeError: as there.
    """
    return Papillon(papillon.program(max_new_tokens=max_new_tokens).max_new_tokens)
