"""Retries and parse status of DSPy predictors: one predictor call is one invocation, its retries are attempts."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from schemas.errors import ParseError, RecipeError
from stages.programs.recorder import Invocation, Messages, Record, not_parsed, parsed
from stages.programs.session import Caller, Reply

STAMP = "_mmgrpo_path"
"""Attribute of a predictor: its path in the program. DSPy's copies (BestOfN, Refine) keep it."""
RUN, INVOCATIONS = "mmgrpo_run", "mmgrpo_invocations"
"""Names in DSPy's context: the run's `Caller`, and the `Invocations` of the predictor call at hand."""


class OurEngine:
    """What the engines of LMs whose calls are recorded have in common."""


class Invocations:
    """The invocations of one predictor call: one, or n where it asks for n completions."""

    def __init__(self, caller: Caller, path: str, inputs: Mapping[str, Any]) -> None:
        self.caller, self.path, self._inputs = caller, path, inputs
        self._invocations: list[Invocation] = [caller.recorder.open(path, inputs)]
        self._attempt = -1
        self._records: list[Record] = []

    def next_attempt(self) -> None:
        """Begin an attempt: its k-th completion is an attempt of the k-th invocation."""
        self._attempt += 1
        self._records = []

    def submit(self, caller: Caller, messages: Messages, lm: str, overrides: Mapping[str, Any]) -> Future[Reply]:
        """Make the next LM call of this attempt."""
        if len(self._records) == len(self._invocations):
            self._invocations.append(caller.recorder.open(self.path, self._inputs))
        invocation = self._invocations[len(self._records)]
        record, future = caller.submit(invocation, self._attempt, messages, lm, overrides)
        self._records.append(record)
        return future

    def parsed(self, prediction: Any) -> None:
        """All completions of this attempt had the expected form."""
        for record, completion in zip(self._records, prediction.completions, strict=True):
            parsed(record, completion.toDict())

    def not_parsed(self, error: AdapterParseError) -> bool:
        """The first completion that the error speaks of did not parse. Says whether asking again can help."""
        failed = [record for record in self._records if record.completion == error.lm_response] or self._records[-1:]
        for record in failed[:1]:
            not_parsed(record, ParseError(list(error.parsed_result or {}), list(error.signature.output_fields)))
        return any(not self.caller.repeats(record) for record in failed)

    def close(self) -> None:
        """The predictor call is over."""
        for invocation in self._invocations:
            self.caller.recorder.close(invocation)


def without_fallback(adapter: Any) -> Any:
    """The adapter without ChatAdapter's second call in JSON: that would be a prompt that nobody chose to train."""
    adapter = adapter or dspy.ChatAdapter()
    if getattr(adapter, "use_json_adapter_fallback", False) and not isinstance(adapter, dspy.JSONAdapter):
        adapter = copy.copy(adapter)
        adapter.use_json_adapter_fallback = False
    return adapter


class RecordedPredict(dspy.Predict):  # type: ignore[misc]  # dspy has no types
    """A predictor whose calls are recorded and retried. Stamped predictors become subclasses of it and their class."""

    def forward(self, **kwargs: Any) -> Any:
        """The prediction; `AdapterParseError` after the last attempt."""
        caller: Caller | None = dspy.settings.get(RUN)
        if caller is None:
            return super().forward(**kwargs)
        invocations = self._invocations(caller, kwargs)
        try:
            for attempt in range(caller.session.parse_retries + 1):
                invocations.next_attempt()
                try:
                    with self._context(invocations):
                        prediction = super().forward(**dict(kwargs))
                except AdapterParseError as error:
                    self._failed(invocations, error, attempt)
                else:
                    invocations.parsed(prediction)
                    return prediction
        finally:
            invocations.close()
        raise AssertionError("the last attempt raises or returns")

    async def aforward(self, **kwargs: Any) -> Any:
        """As `forward`."""
        caller: Caller | None = dspy.settings.get(RUN)
        if caller is None:
            return await super().aforward(**kwargs)
        invocations = self._invocations(caller, kwargs)
        try:
            for attempt in range(caller.session.parse_retries + 1):
                invocations.next_attempt()
                try:
                    with self._context(invocations):
                        prediction = await super().aforward(**dict(kwargs))
                except AdapterParseError as error:
                    self._failed(invocations, error, attempt)
                else:
                    invocations.parsed(prediction)
                    return prediction
        finally:
            invocations.close()
        raise AssertionError("the last attempt raises or returns")

    def _invocations(self, caller: Caller, kwargs: Mapping[str, Any]) -> Invocations:
        lm = kwargs.get("lm") or self.lm or dspy.settings.lm
        if not isinstance(getattr(lm, "engine", None), OurEngine):
            raise RecipeError(
                f"'{getattr(self, STAMP)}' was called with another LM ({getattr(lm, 'model', lm)}), whose calls could "
                "not be recorded. Put it in the recipe as [lms.NAME] and use "
                "stages.programs.dspy_engine.program_lm('NAME')."
            )
        fields = kwargs.get("signature", self.signature)
        names = dspy.ensure_signature(fields).input_fields
        return Invocations(caller, getattr(self, STAMP), {name: kwargs[name] for name in names if name in kwargs})

    def _context(self, invocations: Invocations) -> Any:
        return dspy.context(**{INVOCATIONS: invocations, "adapter": without_fallback(dspy.settings.adapter)})

    def _failed(self, invocations: Invocations, error: AdapterParseError, attempt: int) -> None:
        """Record a parse failure; raise it when there is no attempt left, or none that could differ."""
        again = invocations.not_parsed(error)
        if not again or attempt == invocations.caller.session.parse_retries:
            invocations.caller.final_parse_error = error
            raise error
