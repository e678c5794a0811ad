"""Takes what gives people away out of items before they are written anywhere.

In place of a value stands a mark: its kind, and its digest under a key that is kept nowhere: made of the secret that
users' keys are kept under, or for this process alone where there is none.
`pseudonyms` puts numbers in the place of marks when a whole trace is there.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages.ingest.normal import Call, Item, Refused, Span
from stages.ingest.patterns import Finder, Found, find
from stages.ingest.pseudonyms import mark
from stages.ingest.texts import mapped

_GROUPED = frozenset({"IBAN", "CARD", "PHONE"})
"""Kinds that may be written with separators: the same number is the same value."""
_EXACT = frozenset({"API_KEY", "CREDENTIALS"})
_LONG = 10**9
"""Numbers from here on are looked at as texts; smaller ones say nothing of anybody."""
_KEPT = ("role", "tool_call_id")
Decode = Callable[[Sequence[int]], str | None]


class Redactor:
    """Replaces values by marks, equal within a trace for equal values.

    Args:
        finders: what to look for.
        secret: what users' keys are kept under; without one they are dropped.
        decode: token ids to their text, None for ids that have none.
    """

    def __init__(self, finders: Sequence[Finder], secret: bytes | None, decode: Decode) -> None:
        self._finders, self._secret, self._decode = tuple(finders), secret, decode
        self._key = os.urandom(32) if secret is None else hmac.new(secret, b"mmgrpo marks", hashlib.sha256).digest()

    def item(self, item: Item) -> Item:
        """An item with marks in the place of what was found."""
        if isinstance(item, Refused):
            return replace(item, detail=self._shown(item.detail))
        if isinstance(item, Span):
            return self._span(item)
        return replace(item, source=None if item.source is None else self._text(item.trace, item.source))

    def _shown(self, text: str) -> str:
        for found in reversed(find(text, self._finders)):
            text = f"{text[: found.start]}<{found.kind}>{text[found.end :]}"
        return text

    def _span(self, span: Span) -> Span:
        def changed(value: Any) -> Any:
            return self._value(span.trace, value)

        return replace(
            span,
            name=changed(span.name),
            error=changed(span.error),
            inputs=changed(span.inputs),
            outputs=changed(span.outputs),
            metadata=changed(dict(span.metadata)),
            example=changed(span.example),
            user=user_key(span.user, self._secret) if span.user and self._secret else None,
            call=None if span.call is None else self._call(span.trace, span.call),
            told=tuple(self._event(span.trace, told) for told in span.told),
        )

    def _event(self, trace: str, told: Mapping[str, Any]) -> Mapping[str, Any]:
        said = self._value(trace, told["said"])
        return told if said == told["said"] else {**told, "said": said, "redacted": True}

    def _call(self, trace: str, call: Call) -> Call:
        """A call whose texts are marked. Where something was found its ids go, which say the same."""
        made = replace(
            call,
            messages=tuple(
                {name: said if name in _KEPT else self._value(trace, said) for name, said in message.items()}
                for message in call.messages
            ),
            completion=self._value(trace, call.completion),
            tool_calls=self._value(trace, call.tool_calls),
            reasoning=self._value(trace, call.reasoning),
        )
        if made == call and not (self._told(call.prompt_ids) or self._told(call.completion_ids)):
            return call
        return replace(made, redacted=True, prompt_ids=None, completion_ids=None, logprobs=None, logprob_kind=None)

    def _told(self, ids: Sequence[int] | None) -> bool:
        text = self._decode(ids) if ids else None
        return bool(text and find(text, self._finders))

    def _value(self, trace: str, value: Any) -> Any:
        def number(whole: int) -> Any:
            if abs(whole) < _LONG:
                return whole
            changed = self._text(trace, str(whole))
            return whole if changed == str(whole) else changed

        return mapped(value, lambda text: self._text(trace, text), number)

    def _text(self, trace: str, text: str) -> str:
        parts, place = [], 0
        for found in find(text, self._finders):
            value = self._mark(trace, text[found.start : found.end], found.kind)
            quote = _quote(text, found)
            parts += [text[place : found.start], quote, value, quote]
            place = found.end
        return "".join([*parts, text[place:]]) if parts else text

    def _mark(self, trace: str, value: str, kind: str) -> str:
        if kind in _GROUPED:
            value = "".join(char for char in value if char.isalnum())
        if kind == "PHONE":
            value = _PREFIX.sub("", value)
        same = value if kind in _EXACT else value.casefold()
        told = f"{trace}\0{kind}\0{same}".encode(errors="surrogatepass")
        return mark(kind, hmac.new(self._key, told, hashlib.sha256).hexdigest()[:32])


def user_key(user: str, secret: bytes) -> str:
    """A user's key as it is kept: its digest under a secret."""
    told = f"user\0{user}".encode(errors="surrogatepass")
    return hmac.new(secret, told, hashlib.sha256).hexdigest()[:20]


_PREFIX = re.compile(r"^(?:00|1(?=\d{10}$))")
"""What may be left out of a number's beginning: that it is international, and the code of North America."""
_BEFORE, _AFTER, _QUOTE = re.compile(r"[:\[,]\s*\Z"), re.compile(r"\s*[,\]}]"), re.compile(r'\\*"')


def _quote(text: str, found: Found) -> str:
    """The quotation mark that a number needs which stands bare in a text of JSON, so that it stays JSON; mostly ""."""
    if not text[found.start : found.end].isdecimal() or not text.lstrip().startswith(("{", "[")):
        return ""
    before = text[max(0, found.start - 200) : found.start]
    if not _BEFORE.search(before[-9:]) or not _AFTER.match(text, found.end):
        return ""
    quotes = _QUOTE.findall(before)
    return str(quotes[-1]) if quotes else '"'
