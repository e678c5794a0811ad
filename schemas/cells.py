"""JSON in cells of tables and in small files, read as what it must be."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from pydantic import Strict, TypeAdapter

from schemas.errors import DataError
from schemas.shapes import SHOWN, Number

T = TypeVar("T")

FIELDS = TypeAdapter(Annotated[dict[str, Any], Strict()])
NUMBERS = TypeAdapter(Annotated[dict[str, Number], Strict()])
"""Parts of a reward or a score."""
MESSAGES = TypeAdapter(Annotated[list[dict[str, Any]], Strict()])


def cell(text: str | bytes, kind: TypeAdapter[T], where: str) -> T:
    """What a cell holds.

    Args:
        text: JSON.
        kind: what it must be.
        where: it stands, for people: the file, and the column.

    Raises:
        DataError: naming the place.
    """
    try:
        return kind.validate_python(json.loads(text))
    except (ValueError, RecursionError):
        raise DataError(
            f"{where}: not the JSON that stands there (got {str(text[:SHOWN])!r}). Restore the file, or delete its "
            "artifact and run again"
        ) from None
