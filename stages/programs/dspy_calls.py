"""Retries and parse status of DSPy predictors: one predictor call is one invocation, its retries are attempts."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from schemas.errors import ParseError, RecipeError
from stages.programs.dspy_fields import fields_read
from stages.programs.jsonable import json_text
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

    def __init__(self, caller: Caller, path: str, inputs: str) -> None:
        self.caller, self.path, self._inputs = caller, path, inputs
        self._invocations: list[Invocation] = []
        self._attempt = 0
        self._records: list[Record] = []

    def __enter__(self) -> Invocations:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        for invocation in self._invocations:
            self.caller.recorder.close(invocation)

    def _open(self) -> None:
        self._invocations.append(self.caller.recorder.open(self.path, self._inputs, of=self))

    def attempts(self) -> Iterator[AbstractContextManager[None]]:
        """Contexts to make the attempts in: the k-th completion of each is an attempt of the k-th invocation.

        A context takes in `AdapterParseError` where another attempt is due, and lets it through after the last, or
        where none could differ.
        """
        last = self.caller.session.parse_retries
        for self._attempt in range(last + 1):
            self._records = []
            yield self._trying(final=self._attempt == last)

    @contextmanager
    def _trying(self, *, final: bool) -> Iterator[None]:
        with dspy.context(**{INVOCATIONS: self, "adapter": without_fallback(dspy.settings.adapter)}):
            try:
                yield
            except AdapterParseError as error:
                again = self._not_parsed(error)
                if final or not again:
                    self.caller.parse_errors.append(error)
                    raise

    def submit(self, caller: Caller, messages: Messages, lm: str, overrides: Mapping[str, Any]) -> Future[Reply]:
        """Make the next LM call of this attempt."""
        if len(self._records) == len(self._invocations):
            self._open()
        invocation = self._invocations[len(self._records)]
        record, future = caller.submit(invocation, self._attempt, messages, lm, overrides)
        self._records.append(record)
        return future

    def parsed(self, prediction: Any) -> Any:
        """All completions of this attempt had the expected form; returns the prediction."""
        for record, completion in zip(self._records, prediction.completions, strict=True):
            parsed(record, completion.toDict())
        return prediction

    def _not_parsed(self, error: AdapterParseError) -> bool:
        """The first completion that the error speaks of did not parse. Says whether asking again can help."""
        failed = [record for record in self._records if record.completion == error.lm_response] or self._records[-1:]
        for record in failed[:1]:
            read = fields_read(error, dspy.settings.adapter)
            not_parsed(record, ParseError(read, list(error.signature.output_fields)))
        return any(not self.caller.repeats(record) for record in failed)


def without_fallback(adapter: Any) -> Any:
    """The adapter without ChatAdapter's second call in JSON: that would be a prompt that nobody chose to train."""
    adapter = adapter or dspy.ChatAdapter()
    if getattr(adapter, "use_json_adapter_fallback", False) and not isinstance(adapter, dspy.JSONAdapter):
        adapter = copy.copy(adapter)
        adapter.use_json_adapter_fallback = False
    return adapter


class RecordedPredict(dspy.Predict):
    """A predictor whose calls are recorded and retried. Stamped predictors become subclasses of it and their class."""

    def forward(self, **kwargs: Any) -> Any:
        """The prediction; `AdapterParseError` after the last attempt."""
        caller: Caller | None = dspy.settings.get(RUN)
        if caller is None:
            return super().forward(**kwargs)
        with self._invocations(caller, kwargs) as invocations:
            for attempt in invocations.attempts():
                with attempt:
                    return invocations.parsed(super().forward(**dict(kwargs)))
        raise AssertionError("the last attempt raises or returns")

    async def aforward(self, **kwargs: Any) -> Any:
        """As `forward`."""
        caller: Caller | None = dspy.settings.get(RUN)
        if caller is None:
            return await super().aforward(**kwargs)
        with self._invocations(caller, kwargs) as invocations:
            for attempt in invocations.attempts():
                with attempt:
                    return invocations.parsed(await super().aforward(**dict(kwargs)))
        raise AssertionError("the last attempt raises or returns")

    def reset(self) -> None:
        """Forget demonstrations and what was learned, as DSPy's optimizers ask for; an LM of its own stays."""
        lm: Any = getattr(self, "lm", None)
        super().reset()
        self.lm = lm

    def _invocations(self, caller: Caller, kwargs: Mapping[str, Any]) -> Invocations:
        lm = kwargs.get("lm") or self.lm or dspy.settings.lm
        if not isinstance(getattr(lm, "engine", None), OurEngine):
            raise RecipeError(
                f"'{getattr(self, STAMP)}' was called with another LM ({getattr(lm, 'model', lm)}), whose calls could "
                "not be recorded. Put it in the recipe as [lms.NAME] and use "
                "stages.programs.dspy_engine.program_lm('NAME')."
            )
        fields = dspy.ensure_signature(kwargs.get("signature", self.signature)).input_fields
        return Invocations(caller, getattr(self, STAMP), _inputs(kwargs, fields))


def _inputs(kwargs: Mapping[str, Any], fields: Iterable[str]) -> str:
    """The input fields as JSON; those without a JSON form (tools, which are functions) are left out."""
    known: dict[str, Any] = {}
    for name in fields:
        if name in kwargs:
            with suppress(TypeError):
                json_text(kwargs[name])
                known[name] = kwargs[name]
    return json_text(known)
