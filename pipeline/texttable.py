"""Rows as text for a terminal: aligned columns, digests cut to twelve digits, numbers to four."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a row below a line of column names; columns follow the first row."""
    if not rows:
        return "(none)"
    names = list(rows[0])
    lines = [[name.replace("_", " ") for name in names], *([cell(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(names))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def fields(row: Mapping[str, Any]) -> str:
    """One line a field."""
    width = max(len(name) for name in row)
    return "\n".join(f"{name.replace('_', ' ').ljust(width)}  {cell(value)}" for name, value in row.items())


def cell(value: Any) -> str:
    """A value in few characters, on one line."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return ", ".join(map(cell, value)) or "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = " ".join(str(value).split())
    if len(text) == 64 and set(text) <= set("0123456789abcdef"):
        return text[:12]
    return text if len(text) <= 80 else f"{text[:79]}…"
