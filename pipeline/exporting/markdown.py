"""Text of users as Markdown that shows it and does nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from schemas.visible import plain

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~=&:@$^\"'])")


def escaped(text: object) -> str:
    """A text on one line, in which nothing is markup, a link or HTML, and no character is hidden."""
    return _SPECIAL.sub(r"\\\1", " ".join(plain(text).split()))


def code(text: object) -> str:
    """A text as a code span, which ends at its own fence alone; also inside a table."""
    shown = " ".join(plain(text).split()) or " "
    fence = "`" * (_longest_run(shown) + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown.replace('|', chr(0x2502))}{pad}{fence}"


def block(text: str, language: str) -> str:
    """A text as a code block that no line of it can end."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{plain(text).rstrip()}\n{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already; empty without rows."""
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines]) if lines else ""


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
