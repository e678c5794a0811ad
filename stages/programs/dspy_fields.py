"""Which output fields of a completion that did not parse could be read: what its format reward follows from."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError


def fields_read(error: AdapterParseError, adapter: Any) -> list[str]:
    """The names of the fields that could be read.

    DSPy's own adapters do not tell: ChatAdapter and XMLAdapter forget all fields where one has a wrong type,
    JSONAdapter counts that one too. So each field is read alone. Other adapters are believed.
    """
    names = list(error.signature.output_fields)
    if not isinstance(adapter, dspy.ChatAdapter):
        return list(error.parsed_result or {})
    if len(names) == 1:
        return []
    return [name for name in names if _reads(adapter, _alone(error.signature, name), error.lm_response)]


def _reads(adapter: Any, signature: Any, completion: str) -> bool:
    try:
        adapter.parse(signature, completion)
    except (AdapterParseError, ValueError):
        return False
    return True


@lru_cache(maxsize=256)
def _alone(signature: Any, name: str) -> Any:
    """The signature with one of its output fields."""
    for other in signature.output_fields:
        if other != name:
            signature = signature.delete(other)
    return signature
