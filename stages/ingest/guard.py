"""Reading many things out of one value: a broken one is refused, and its neighbours are read all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from schemas.errors import DataError
from stages.ingest.normal import Item, Refused

BROKEN = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError)
"""What a reader raises when a value has not the form that its format says."""


def refusal(error: Exception, where: str, trace: str | None = None) -> Refused:
    """Why a thing could not be read."""
    detail = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
    return Refused("broken", detail[:500], where, trace)


def each(
    things: Any, reader: Callable[[Any], Iterable[Item]], where: str, what: str, trace: str | None = None
) -> Iterator[Item]:
    """What a reader makes of each thing of a list; nothing where there is no list.

    Args:
        things: the list, as logged.
        reader: of one thing.
        where: the file and the value's place in it.
        what: what the things are called, for messages.
        trace: of the things, where it is known.
    """
    if things is None:
        return
    if not isinstance(things, (list, tuple)):
        yield Refused("broken", f"the {what}s are {type(things).__name__}, expected a list", where, trace)
        return
    for place, thing in enumerate(things):
        try:
            found = reader(thing)
            found = found if type(found) is list else list(found)
        except (DataError, *BROKEN) as error:
            yield refusal(error, f"{where}, {what} {place + 1}", trace)
        else:
            yield from found
