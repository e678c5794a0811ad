"""The recorder: every LM call of a program run becomes a row at the moment it is made."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import ParseError
from schemas.recipe_data import SamplingSection
from stages.engines.interface import Sampling
from stages.engines.signals import RunEnded
from stages.programs.branches import Branch, Place, current
from stages.programs.jsonable import json_text

Messages = list[dict[str, str]]


@dataclass(eq=False)
class Invocation:
    """One call of a module, whatever its retries. Open from its first attempt to its last."""

    module: str
    branch: Branch
    """The run's own for calls of threads that the program started itself: they stand where they happen to arrive."""
    place: Place
    rank: int
    """Among the module's invocations in the branch, in the order in which they were opened."""
    inputs: str | None
    of: object
    """The predictor call that it belongs to: with n completions, that has n invocations, in a certain order."""
    overlapped: bool = False
    """Open at the same time as another one of its branch: several threads or tasks share it."""


@dataclass(eq=False)
class Record:
    """One LM call: filled in when it is made, when it is answered, and when its completion is parsed."""

    invocation: Invocation
    place: Place
    attempt: int
    lm: str
    messages: Messages
    sampling: Sampling
    value: Any = None
    answer: dict[str, Any] = field(default_factory=dict)
    """Columns known once the call is answered."""
    origin: dict[str, Any] = field(default_factory=dict)
    """Columns that say who serves the call: engine, adapter, tokenizer, template, seed, logprob kind."""
    outputs: str | None = None
    parse_status: str = "none"
    parsed_share: float | None = None

    @property
    def completion(self) -> str | None:
        """The completion's text; None until the call is answered."""
        return self.answer.get("completion")


class Recorder:
    """The calls of one program run, in the order of their places. Safe to use from several threads."""

    def __init__(self, rollout_id: str) -> None:
        self.rollout_id = rollout_id
        self.branch = Branch(self)
        """The run's own; others fork from it."""
        self._lock = threading.Lock()
        self._records: list[Record] = []
        self._counts: dict[tuple[Place, str], int] = {}
        self._open: list[Invocation] = []
        self._astray: set[str] = set()
        """Modules that were called by threads without a branch."""
        self._sealed = False

    def open(self, module: str, inputs: str | None, of: object = None) -> Invocation:
        """Start an invocation of a module.

        Args:
            module: its name.
            inputs: canonical JSON.
            of: the predictor call that it is one of several invocations of.
        """
        found = current()
        known = found if found is not None and found.run is self else None
        branch = known or self.branch
        with self._lock:
            self._refuse_late()
            rank = self._counts.get((branch.path, module), 0)
            self._counts[branch.path, module] = rank + 1
            invocation = Invocation(module, branch, branch.step(), rank, inputs, of or object())
            if known is None:
                self._astray.add(module)
                return invocation
            for other in self._open:
                if other.branch is branch and other.of is not invocation.of:
                    other.overlapped = invocation.overlapped = True
            self._open.append(invocation)
            return invocation

    def close(self, invocation: Invocation) -> None:
        """The invocation has its final attempt."""
        with self._lock:
            self._open = [other for other in self._open if other is not invocation]

    def begin(self, invocation: Invocation, attempt: int, lm: str, messages: Messages, sampling: Sampling) -> Record:
        """Record a call that is about to be made."""
        with self._lock:
            self._refuse_late()
            record = Record(invocation, invocation.branch.step(), attempt, lm, messages, sampling)
            self._records.append(record)
            return record

    def seal(self) -> None:
        """Nothing is recorded from now on; later calls of a lingering run raise `RunEnded`."""
        with self._lock:
            self._sealed = True

    def _refuse_late(self) -> None:
        if self._sealed:
            raise RunEnded

    def records(self) -> list[Record]:
        """The calls so far, in order."""
        with self._lock:
            return sorted(self._records, key=lambda record: record.place)

    def concurrent(self, invocation: Invocation) -> bool:
        """Whether its rank among the module's invocations is not certain."""
        return invocation.overlapped or invocation.module in self._astray


def parsed(record: Record, value: Any) -> None:
    """The completion had the expected form. A value without a JSON form is kept for the program and left out here."""
    record.value, record.parse_status, record.parsed_share = value, "ok", 1.0
    with suppress(TypeError):
        record.outputs = json_text(value)


def not_parsed(record: Record, error: ParseError | None) -> None:
    """The completion did not have the expected form; without an error, `parse` itself crashed."""
    record.parse_status, record.parsed_share = "failed", None if error is None else error.share


def overridden(sampling: SamplingSection | Sampling, overrides: Mapping[str, Any]) -> Sampling:
    """Sampling settings with a call's own overrides.

    Raises:
        TypeError: for an unknown override; names the known ones.
        ValueError: for a value out of range.
    """
    known = ("temperature", "top_p", "top_k", "max_new_tokens")
    unknown = [name for name in overrides if name not in known]
    if unknown:
        raise TypeError(f"call() knows no option {', '.join(unknown)}; sampling options are {', '.join(known)}")
    values = {name: overrides.get(name, getattr(sampling, name)) for name in known}
    checked = SamplingSection(**values)
    return Sampling(checked.temperature, checked.top_p, checked.top_k, checked.max_new_tokens)


def checked_messages(messages: Sequence[Mapping[str, str]]) -> Messages:
    """A copy of chat messages.

    Raises:
        TypeError: unless each is a dictionary with the texts `role` and `content`, and there is at least one.
    """
    if isinstance(messages, (str, Mapping)) or not messages:
        raise TypeError("messages: expected a list of {'role': …, 'content': …} dictionaries, at least one")
    for index, message in enumerate(messages):
        texts = isinstance(message, Mapping) and all(isinstance(value, str) for value in message.values())
        if not texts or set(message) != {"role", "content"}:
            raise TypeError(f"messages[{index}]: expected a dictionary with the texts 'role' and 'content'")
        if not encodable(message["role"] + message["content"]):
            raise TypeError(f"messages[{index}]: the text has a lone surrogate, which has no UTF-8 form")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def encodable(text: str) -> bool:
    """Whether a text can be stored: it has a UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
