"""One JSON value of a file, and where it stood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Shape = Literal["object", "array", "lines", "rows"]
"""Where a value stood: alone in its file, in an array, on a line of its own, or in a table."""


@dataclass(frozen=True, slots=True)
class Value:
    """One JSON value of a file."""

    value: Any
    shape: Shape
    where: str
