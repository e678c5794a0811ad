"""Records as JSON inside a page: nothing in them can end the element they stand in or be taken for markup."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

SHARED_FROM = 60
"""Bytes of JSON from which a text is kept once: the instructions of a module stand in every prompt."""
_UNSAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def script_json(value: Any) -> str:
    """JSON in ASCII without `<`, `>` and `&`: for a `<script type="application/json">`, and for any other place.

    What is not finite is null. Lone surrogates, U+2028 and controls stand as escapes, as in any ASCII JSON.
    """
    return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False).translate(_UNSAFE)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


@dataclass
class Packer:
    """Packs records until a number of bytes is full. Long texts are kept once, and named by their place in `texts`."""

    most: int
    """Bytes of JSON, all together."""
    records: list[str] = field(default_factory=list)
    texts: dict[str, int] = field(default_factory=dict)
    """JSON of each, and its place."""
    bytes: int = 0

    def add(self, record: dict[str, Any]) -> bool:
        """Take a record, unless it would be too much; whether it was taken."""
        new: dict[str, int] = {}
        packed = script_json(self._packed(record, new))
        size = len(packed) + 1 + sum(len(text) + 1 for text in new)
        if self.bytes + size > self.most:
            return False
        self.texts |= new
        self.records.append(packed)
        self.bytes += size
        return True

    def json(self, order: Iterable[int]) -> str:
        """`texts` and `records` as one JSON object, the records in an order of their places."""
        return f'{{"texts":[{",".join(self.texts)}],"records":[{",".join(self.records[place] for place in order)}]}}'

    def _packed(self, value: Any, new: dict[str, int]) -> Any:
        """The value with every `text` of a message that is long named by its place."""
        if isinstance(value, list):
            return [self._packed(item, new) for item in value]
        if not isinstance(value, dict):
            return value
        packed = {name: self._packed(item, new) for name, item in value.items()}
        text = script_json(packed["text"]) if "text" in packed else ""
        if len(text) >= SHARED_FROM:
            place = self.texts.get(text, new.get(text))
            if place is None:
                place = new[text] = len(self.texts) + len(new)
            packed["text"] = place
        return packed
