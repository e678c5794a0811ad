"""Items as bytes and back: the canonical JSON of what is known of them.

The bytes are what content digests are taken of, so that a span is encoded once, when it is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from math import isfinite
from operator import attrgetter
from typing import Any

import orjson

from schemas.canonical import canonical_json
from stages.ingest.normal import Call, Item, Refused, Score, Span

KINDS: Mapping[type, str] = {Span: "span", Score: "score", Refused: "refused"}
_LISTS = ("messages", "tool_calls", "prompt_ids", "completion_ids", "logprobs")
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
_NUMBER = re.compile(rb"(?:^|[\[,:])-?(?:0\.0000|[0-9][0-9.]*e)")
"""Numbers that orjson and canonical JSON may write differently; also found within texts, which does no harm."""


class _Seldom:
    """The fields of a dataclass that few of its items say anything in: they are looked at together."""

    def __init__(self, kind: type, *often: str) -> None:
        left = [item for item in fields(kind) if item.name not in (*often, "where")]
        self._names, self._get = [item.name for item in left], attrgetter(*(item.name for item in left))
        self._nothing = tuple(
            item.default if item.default_factory is MISSING else item.default_factory() for item in left
        )

    def into(self, held: dict[str, Any], item: Any) -> dict[str, Any]:
        """Add what they say."""
        if (found := self._get(item)) != self._nothing:
            every = zip(self._names, self._nothing, found, strict=True)
            held.update((name, value) for name, nothing, value in every if value != nothing and _finite(value))
        return held


_of_spans = _Seldom(
    Span, "trace", "span", "parent", "kind", "name", "start", "end", "agent", "inputs", "outputs", "call"
)
_of_calls = _Seldom(Call, "messages", "completion", "finish_reason", "model", "temperature")
_of_scores = _Seldom(Score, "trace", "name", "value")


def _finite(value: Any) -> bool:
    """Whether a value says more than that nothing is known. A 0 says something, NaN and infinity do not."""
    return value.__class__ is not float or isfinite(value)


def _of_span(span: Span) -> dict[str, Any]:
    held: dict[str, Any] = {"trace": span.trace, "span": span.span}
    if span.parent is not None:
        held["parent"] = span.parent
    if span.kind != "other":
        held["kind"] = span.kind
    if span.name != "":
        held["name"] = span.name
    if span.start is not None:
        held["start"] = span.start
    if span.end is not None:
        held["end"] = span.end
    if span.agent is not None:
        held["agent"] = span.agent
    if span.inputs is not None and _finite(span.inputs):
        held["inputs"] = span.inputs
    if span.outputs is not None and _finite(span.outputs):
        held["outputs"] = span.outputs
    if span.call is not None:
        held["call"] = _of_call(span.call)
    return _of_spans.into(held, span)


def _of_call(call: Call) -> dict[str, Any]:
    held: dict[str, Any] = {"messages": call.messages}
    if call.completion is not None:
        held["completion"] = call.completion
    if call.finish_reason is not None:
        held["finish_reason"] = call.finish_reason
    if call.model is not None:
        held["model"] = call.model
    if call.temperature is not None and _finite(call.temperature):
        held["temperature"] = call.temperature
    return _of_calls.into(held, call)


def _of_score(score: Score) -> dict[str, Any]:
    held: dict[str, Any] = {"trace": score.trace, "name": score.name}
    if _finite(score.value):  # None says that it was made and has no number
        held["value"] = score.value
    return _of_scores.into(held, score)


def stored(item: Item) -> bytes:
    """The bytes of an item; where it stood in a file is left out, but of one that was refused.

    Raises:
        TypeError, ValueError: for what has no JSON form.
    """
    if isinstance(item, Span):
        held = _of_span(item)
    elif isinstance(item, Score):
        held = _of_score(item)
    else:
        held = {"reason": item.reason, "detail": item.detail, "where": item.where, "trace": item.trace}
    return canonical_bytes(held)


def canonical_bytes(value: Any) -> bytes:
    """Canonical JSON of a value, what JSON does not know taken as orjson takes it: nothing for NaN, texts for keys.

    Raises:
        TypeError, ValueError: for what has no JSON form.
    """
    try:
        line = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # perhaps of a key that is no text; that there may be such takes time of all others
        line = orjson.dumps(value, option=_OPTIONS)
    strange = b"0.0000" in line or (b"-" in line and b"e-" in line) or (b"+" in line and b"e+" in line)
    if strange and _NUMBER.search(line):
        return canonical_json(orjson.loads(line)).encode()
    return line


def restored(kind: str, line: bytes) -> Item:
    """The item of its bytes."""
    held: dict[str, Any] = orjson.loads(line)
    if kind == "span":
        if (call := held.get("call")) is not None:
            for name in _LISTS:
                if (listed := call.get(name)) is not None:
                    call[name] = tuple(listed)
            held["call"] = Call(**call)
        if (told := held.get("told")) is not None:
            held["told"] = tuple(told)
        return Span(**held)
    return Score(**held) if kind == "score" else Refused(**held)


def texts(items: Sequence[Item]) -> list[str]:
    """The bytes of items as texts, each once, sorted."""
    return sorted({stored(item).decode() for item in items})
