"""The recorder: every LM call of a program run becomes a row at the moment it is made."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from schemas.canonical import canonical_json
from schemas.errors import ParseError
from schemas.recipe_data import SamplingSection
from stages.engines.interface import Sampling
from stages.engines.signals import RunEnded
from stages.programs.jsonable import json_text

Messages = list[dict[str, str]]


@dataclass
class Invocation:
    """One call of a module, whatever its retries. Open from its first attempt to its last."""

    module: str
    index: int
    inputs: str | None
    concurrent: bool = False


@dataclass
class Record:
    """One LM call: filled in when it is made, when it is answered, and when its completion is parsed."""

    invocation: Invocation
    call_index: int
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
    """The calls of one program run, in the order in which they were made. Safe to use from several threads."""

    def __init__(self, rollout_id: str) -> None:
        self.rollout_id = rollout_id
        self._lock = threading.Lock()
        self._records: list[Record] = []
        self._counts: dict[str, int] = {}
        self._open: list[Invocation] = []
        self._sealed = False

    def open(self, module: str, inputs: Mapping[str, Any] | None) -> Invocation:
        """Start an invocation: its index is its rank among the module's invocations so far."""
        text = None if inputs is None else json_text(inputs)
        with self._lock:
            self._refuse_late()
            invocation = Invocation(module, self._counts.get(module, 0), text)
            self._counts[module] = invocation.index + 1
            self._open.append(invocation)
            if len(self._open) > 1:
                for overlapping in self._open:
                    overlapping.concurrent = True
            return invocation

    def close(self, invocation: Invocation) -> None:
        """The invocation has its final attempt."""
        with self._lock:
            self._open = [other for other in self._open if other is not invocation]

    def begin(self, invocation: Invocation, attempt: int, lm: str, messages: Messages, sampling: Sampling) -> Record:
        """Record a call that is about to be made."""
        with self._lock:
            self._refuse_late()
            record = Record(invocation, len(self._records), attempt, lm, messages, sampling)
            self._records.append(record)
            return record

    def seal(self) -> None:
        """Nothing is recorded from now on; later calls of a lingering run raise `RunEnded`."""
        with self._lock:
            self._sealed = True

    def _refuse_late(self) -> None:
        if self._sealed:
            raise RunEnded

    def rows(self) -> list[dict[str, Any]]:
        """Rows of the invocations table, by call_index."""
        with self._lock:
            return [row(self.rollout_id, record) for record in self._records]

    def calls(self) -> list[dict[str, Any]]:
        """The calls as a metric sees them."""
        with self._lock:
            return [_view(record) for record in self._records]


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


def row(rollout_id: str, record: Record) -> dict[str, Any]:
    """One row of the invocations table. A call that was never answered is `partial`: audit only."""
    sampling, invocation = record.sampling, record.invocation
    return {
        "rollout_id": rollout_id,
        "call_index": record.call_index,
        "module": invocation.module,
        "invocation_index": invocation.index,
        "attempt": record.attempt,
        "lm": record.lm,
        "inputs": invocation.inputs,
        "outputs": record.outputs,
        "messages": canonical_json(record.messages),
        "completion": None,
        "prompt_ids": None,
        "completion_ids": None,
        "sampling_logprobs": None,
        "finish_reason": "error",
        "parse_status": record.parse_status,
        "parsed_share": record.parsed_share,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_new_tokens": sampling.max_new_tokens,
        "seed": None,
        "logprob_kind": None,
        "adapter": None,
        "tokenizer": None,
        "template": None,
        "engine": None,
        "trainable": record.lm == "student",
        "concurrent": invocation.concurrent,
        "fidelity": "partial",
        **record.origin,
        **record.answer,
    }


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


def _view(record: Record) -> dict[str, Any]:
    return {
        "module": record.invocation.module,
        "invocation_index": record.invocation.index,
        "attempt": record.attempt,
        "lm": record.lm,
        "messages": [dict(message) for message in record.messages],
        "completion": record.completion,
        "value": record.value,
    }
