"""Items as bytes and back: the canonical JSON of what is known of them.

The bytes are what content digests are taken of, so that a span is encoded once, when it is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
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


def _known(kind: type) -> Callable[[Any], dict[str, Any]]:
    """What fields of a dataclass say more than that nothing is known. A 0 says something, NaN and infinity do not."""
    defaults = [(item.name, _nothing(item)) for item in fields(kind) if item.name != "where"]
    get = attrgetter(*(name for name, _ in defaults))

    def known(value: Any) -> dict[str, Any]:
        held = zip(defaults, get(value), strict=True)
        return {
            name: item
            for (name, nothing), item in held
            if item is not nothing and item != nothing and not (item.__class__ is float and not isfinite(item))
        }

    return known


def _nothing(item: Any) -> Any:
    """A field's default; of one that has none, something that no value is."""
    if item.default_factory is not MISSING:
        return item.default_factory()
    return item.default


_of_span, _of_call, _of_score = _known(Span), _known(Call), _known(Score)


def stored(item: Item) -> bytes:
    """The bytes of an item; where it stood in a file is left out, but of one that was refused.

    Raises:
        TypeError, ValueError: for what has no JSON form.
    """
    if isinstance(item, Span):
        held = _of_span(item)
        if item.call is not None:
            held["call"] = _of_call(item.call)
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
    line = orjson.dumps(value, option=_OPTIONS)
    if (b"0.0000" in line or b"e-" in line or b"e+" in line) and _NUMBER.search(line):
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
