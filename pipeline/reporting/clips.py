"""Texts of bounded length."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Clipped:
    """A text of bounded length: beginning, number of characters left out in the middle, end."""

    head: str
    left_out: int = 0
    tail: str = ""


def clip(text: str, length: int) -> Clipped:
    """A text of at most `length` characters: its two ends, and how much is missing between them."""
    if len(text) <= length:
        return Clipped(text)
    half = length // 2
    return Clipped(text[:half], len(text) - 2 * half, text[-half:])
