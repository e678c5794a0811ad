"""The chain of manifests as a picture: a column per iteration, a box per artifact, an arrow per input.

What every iteration takes from the set-up is drawn once, to the first column: all arrows would hide the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pipeline.reporting.data_chain import Box, Chain, Link
from pipeline.reporting.text import ABSENT, duration
from schemas.visible import plain

WIDTH, HEIGHT = 156, 56
"""Of a box."""
PITCH_X, PITCH_Y = 240, 82
BULGE = 56
"""How far an arrow within a column reaches out to the right."""
TOP, LEFT = 34, 8
FIRST, LAST = 2, 3
"""Columns that are drawn of a long run: its first and its last iterations."""
SHORT = 12
"""Digits of a digest."""


@dataclass(frozen=True)
class Picture:
    """What the page shows."""

    svg: Markup
    left_out: int
    """Iterations between the first and the last ones that are not drawn."""


def draw_chain(chain: Chain) -> Picture | None:
    """The picture, or None when the run has no artifact."""
    if not chain.boxes:
        return None
    columns, gap = _columns(chain.columns)
    places = _places(chain, columns, gap)
    size = max(x for x, _ in places.values()) + WIDTH + BULGE, max(y for _, y in places.values()) + HEIGHT + LEFT
    drawn = [box for box in chain.boxes if box.name in places]
    title = _title(chain, len(columns))
    parts = [_DEFINITIONS, *_heads(columns, gap, size[1])]
    parts += [_arrow(link, places) for link in chain.links if _is_drawn(link, places, columns)]
    parts += [_box(box, *places[box.name]) for box in drawn]
    svg = Markup(
        '<svg role="img" class="chain" width="{0}" height="{1}" viewBox="0 0 {0} {1}"><title>{2}</title>{3}</svg>'
    )
    return Picture(svg.format(*size, title, Markup("").join(parts)), len(chain.columns) - len(columns))


_DEFINITIONS = Markup(
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path class="tip" d="M0 0.5 L8 4 L0 7.5 z"/></marker></defs>'
)


def _title(chain: Chain, columns: int) -> str:
    marks = [f"{count} {mark}" for mark in ("missing", "deleted", "tainted") if (count := chain.marked(mark))]
    told = f"; {', '.join(marks)}" if marks else ""
    return (
        f"What made what: {len(chain.boxes)} artifacts and {len(chain.links)} inputs, {columns} of "
        f"{len(chain.columns)} iterations drawn{told}. The table below has all of them."
    )


def _columns(found: Sequence[int]) -> tuple[list[int], int | None]:
    """The iterations that are drawn, and behind how many of them some are left out."""
    if len(found) <= FIRST + LAST:
        return list(found), None
    return [*found[:FIRST], *found[-LAST:]], FIRST


def _places(chain: Chain, columns: Sequence[int], gap: int | None) -> dict[str, tuple[int, int]]:
    """The upper left corner of each box that is drawn."""
    across: dict[int | None, int] = {None: 0}
    for order, column in enumerate(columns):
        across[column] = order + 1 + (gap is not None and order >= gap)
    filled: dict[int | None, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for box in chain.boxes:
        if box.column in across:
            row = filled.get(box.column, 0)
            filled[box.column] = row + 1
            places[box.name] = LEFT + across[box.column] * PITCH_X, TOP + row * PITCH_Y
    return places


def _heads(columns: Sequence[int], gap: int | None, height: int) -> list[Markup]:
    heads = [_text(LEFT, 20, "set-up", "head")]
    for order, column in enumerate(columns):
        x = LEFT + (order + 1 + (gap is not None and order >= gap)) * PITCH_X
        heads.append(_text(x, 20, f"iteration {column}", "head"))
    if gap is not None:
        x, left_out = LEFT + (gap + 1) * PITCH_X + WIDTH // 2, columns[gap] - columns[gap - 1] - 1
        heads.append(_text(x, 20, f"… {left_out} more …", "head", "middle"))
        heads.append(
            Markup('<line class="skip-line" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(x, TOP, height - LEFT)
        )
    return heads


def _is_drawn(link: Link, places: dict[str, tuple[int, int]], columns: Sequence[int]) -> bool:
    """Whether an arrow is: within a column or to the next one; from the set-up, to the first rollout alone."""
    if link.source not in places or link.target not in places:
        return False
    source, target = places[link.source][0], places[link.target][0]
    if source == LEFT < target:
        return target - source == PITCH_X and link.target == f"iterations/{columns[0]}/rollout"
    return source == target or target - source == PITCH_X


def _arrow(link: Link, places: dict[str, tuple[int, int]]) -> Markup:
    (x1, y1), (x2, y2) = places[link.source], places[link.target]
    if x1 != x2:
        a, b, middle = (x1 + WIDTH, y1 + HEIGHT // 2), (x2, y2 + HEIGHT // 2), (x1 + WIDTH + x2) // 2
        path = f"M{a[0]} {a[1]} C{middle} {a[1]} {middle} {b[1]} {b[0]} {b[1]}"
    elif y2 - y1 == PITCH_Y:
        path = f"M{x1 + WIDTH // 2} {y1 + HEIGHT} V{y2}"
    else:
        side, out = x1 + WIDTH, x1 + WIDTH + min(14 + 8 * abs(y2 - y1) // PITCH_Y, BULGE)
        path = f"M{side} {y1 + HEIGHT // 2} C{out} {y1 + HEIGHT // 2} {out} {y2 + 14} {side} {y2 + 14}"
    return Markup('<path class="arrow" d="{}" marker-end="url(#tip)"/>').format(path)


def _box(box: Box, x: int, y: int) -> Markup:
    digest = box.digest[:SHORT] if box.digest else ABSENT
    spent = box.mark or (duration(box.seconds) if box.seconds is not None else "time not recorded")
    told = f"{box.label}: digest {digest}, {spent}"
    if box.mark and box.seconds is not None:
        spent = f"{box.mark}, {duration(box.seconds)}"
    inside = (
        Markup('<rect x="{}" y="{}" width="{}" height="{}" rx="8"/>').format(x, y, WIDTH, HEIGHT)
        + _text(x + 10, y + 18, _short(plain(box.label)), "name")
        + _text(x + 10, y + 33, digest, "digest")
        + _text(x + 10, y + 48, spent, "spent")
    )
    return Markup('<g class="box {}"><title>{}</title>{}</g>').format(box.mark, plain(told), inside)


def _short(label: str) -> str:
    return label if len(label) <= 20 else f"{label[:19]}…"


def _text(x: int, y: int, text: str, css: str, anchor: str = "start") -> Markup:
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(css, x, y, anchor, text)
