"""Values of programs as JSON: what is stored of inputs, parsed values and outputs."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any

from schemas.canonical import canonical_json


def jsonable(value: Any, path: str = "$") -> Any:
    """The JSON form of a value.

    Known are plain types, mappings, sequences, sets (sorted), dataclasses, enums, pydantic models, numpy scalars, and
    DSPy predictions and examples.

    Raises:
        TypeError: naming the place of the first value without a JSON form.
    """
    if value is None or (isinstance(value, (bool, str)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, enum.Enum):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return {_key(key, path): jsonable(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item, f"{path}[{index}]") for index, item in enumerate(value)]
    return _object(value, path)


def json_text(value: Any) -> str:
    """Canonical JSON text of a program's value.

    Raises:
        TypeError: naming the place of the first value without a JSON form.
    """
    try:
        return canonical_json(jsonable(value))
    except RecursionError:
        raise TypeError("$: the value contains itself, or is nested too deeply, and has no JSON form") from None
    except ValueError as error:  # an integer of thousands of digits
        raise TypeError(f"$: a value has no JSON form ({error})") from None


def _key(key: Any, path: str) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if not isinstance(key, str):
        raise TypeError(f"{path}: key {key!r} is {type(key).__name__}, expected str")
    return key


def _object(value: Any, path: str) -> Any:
    if isinstance(value, enum.Enum):
        return jsonable(value.value, path)
    if isinstance(value, (set, frozenset)):
        return sorted((jsonable(item, path) for item in value), key=canonical_json)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: jsonable(getattr(value, name), f"{path}.{name}") for name in names}
    for method, options in (("model_dump", {"mode": "json"}), ("toDict", {}), ("item", {})):
        convert = getattr(type(value), method, None)
        if callable(convert):
            plain = _converted(convert, value, options)
            if type(plain) is not type(value):
                return jsonable(plain, path)
    raise TypeError(f"{path}: {type(value).__name__} has no JSON form; return numbers, text, lists and dictionaries")


def _converted(convert: Callable[..., Any], value: Any, options: Mapping[str, str]) -> Any:
    """The value's own plain form; the value itself where it has none, as an array of several numbers."""
    try:
        return convert(value, **options)
    except Exception:  # noqa: BLE001 - someone else's conversion may fail in any way; the caller then says what and where
        return value
