"""Every text within a value, whatever it is made of: lists, objects and their keys, spans and calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any


def mapped(value: Any, change: Callable[[str], str], number: Callable[[int], Any] | None = None) -> Any:
    """A value with each of its texts changed, the keys of objects too; the same object where nothing changes.

    Args:
        value: a JSON value, or a dataclass of such.
        change: a text to what stands in its place.
        number: a whole number to what stands in its place; default: itself.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if number is None else number(value)
    if isinstance(value, Mapping):
        made = {
            change(key) if isinstance(key, str) else key: mapped(item, change, number) for key, item in value.items()
        }
        return made if made != value else value
    if isinstance(value, (list, tuple)):
        items = [mapped(item, change, number) for item in value]
        same = all(new is old for new, old in zip(items, value, strict=True))
        return value if same else type(value)(items)
    if is_dataclass(value) and not isinstance(value, type):
        held = {item.name: getattr(value, item.name) for item in fields(value)}
        changes = {name: new for name, old in held.items() if (new := mapped(old, change, number)) is not old}
        return replace(value, **changes) if changes else value
    return value


def texts_of(value: Any, named: Callable[[str], str]) -> Iterator[str]:
    """The texts of a JSON value, in an order that does not depend on that of an object's keys.

    Args:
        value: a JSON value.
        named: what a text is sorted by.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in sorted(((str(key), item) for key, item in value.items()), key=lambda pair: named(pair[0])):
            yield key
            yield from texts_of(item, named)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from texts_of(item, named)
