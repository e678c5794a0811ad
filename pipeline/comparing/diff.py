"""The difference of two runs, as JSON values and in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.comparing import data, outcome
from pipeline.comparing.sides import Side, open_side
from pipeline.texttable import cell

SECTIONS: dict[str, Callable[[Side, Side], dict[str, Any]]] = {
    "recipe": data.recipe,
    "data": data.data,
    "code": data.code,
    "base": data.base,
    "environment": data.environment,
    "artifacts": outcome.artifacts,
    "scores": outcome.scores,
}
SHOWN = 12
"""Lines of one section that are shown; all with --json."""


def diff(first: Path, second: Path) -> dict[str, dict[str, Any]]:
    """What differs between two runs, section by section; a section without a difference is not there.

    Raises:
        DataError: when one of them is no run folder, or is damaged.
    """
    a, b = open_side(first), open_side(second)
    found = {name: compare(a, b) for name, compare in SECTIONS.items()}
    return {name: section for name, section in found.items() if section}


def render(first: Path, second: Path, found: dict[str, dict[str, Any]]) -> str:
    """In words."""
    if not found:
        return f"{first} and {second} are the same: {', '.join(SECTIONS)}"
    lines = [f"from {first} to {second}"]
    for name, section in found.items():
        told = list(_WORDS.get(name, _pairs)(section))
        more = [f"… and {len(told) - SHOWN} more (--json)"] if len(told) > SHOWN else []
        lines += [f"{name}:", *(f"  {line}" for line in [*told[:SHOWN], *more])]
    same = [name for name in SECTIONS if name not in found]
    return "\n".join([*lines, f"the same: {', '.join(same)}"] if same else lines)


def _pairs(section: dict[str, Any]) -> Iterator[str]:
    for name, (was, now) in section.items():
        yield f"{name}: {_cell(was)} -> {_cell(now)}"


def _cell(value: Any) -> str:
    return "(none)" if value is None else cell(value)


def _data(section: dict[str, Any]) -> Iterator[str]:
    rows = section.get("rows")
    yield from _pairs({name: pair for name, pair in section.items() if name != "rows"})
    if rows:
        yield f"examples: {rows['added']} added, {rows['removed']} removed, {rows['changed']} changed"


def _artifacts(section: dict[str, Any]) -> Iterator[str]:
    yield f"{section['same_before']} are the same, then they part at {section['part_at']}: {'; '.join(section['why'])}"
    yield from (f"{name}: {_cell(was)} -> {_cell(now)}" for name, (was, now) in section["differ"].items())


def _scores(section: dict[str, Any]) -> Iterator[str]:
    for name, about in section.items():
        first, second = ("(none)" if entry is None else f"{entry['mean']:.3f}" for entry in about["means"])
        line = f"{name}: {first} -> {second}"
        if paired := about.get("difference"):
            known = paired["low"] is not None
            interval = f" [{paired['low']:+.3f}, {paired['high']:+.3f}]" if known else ""
            line += f", {paired['estimate']:+.3f}{interval} over {paired['n']} examples in common"
        yield line


_WORDS: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "data": _data,
    "artifacts": _artifacts,
    "scores": _scores,
}
