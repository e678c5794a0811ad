"""A recipe as TOML again: every field that is set, what is null left out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def as_toml(document: Mapping[str, Any]) -> str:
    """A document of JSON values as TOML: values first, then a table for every object that is not within a list.

    Empty objects are left out, as nulls are.
    """
    return "\n".join(_lines(document, ())).strip() + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    own = {name: value for name, value in table.items() if value is not None and not isinstance(value, Mapping)}
    inner = {name: value for name, value in table.items() if isinstance(value, Mapping)}
    lines = [f"{_key(name)} = {_value(value)}" for name, value in own.items()]
    if path and own:
        lines = ["", f"[{'.'.join(map(_key, path))}]", *lines]
    for name, value in inner.items():
        lines += _lines(value, (*path, name))
    return lines


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(name)} = {_value(item)}' for name, item in value.items() if item is not None)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(item) for item in value if item is not None)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text(value) if isinstance(value, str) else repr(value)


def _text(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for DEL, and TOML has no surrogates."""
    return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")
