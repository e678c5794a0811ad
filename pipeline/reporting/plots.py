"""Small plots as inline SVG: lines with interval bands, and columns. No script; colours come from the page's CSS.

Every plot has role="img" and a title that says what it shows; a table beside it holds the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from markupsafe import Markup

from pipeline.reporting.text import figure, number
from schemas.visible import plain

HEIGHT = 230
MARKERS = 40
"""Lines with at most this many points show each of them."""
MOST_POINTS = 600
"""Longer lines are drawn as means over runs of consecutive points, and the x axis says of how many."""

LARGEST, SMALLEST = 1e100, 1e-100
"""Magnitudes that can be drawn: a larger one breaks its line like one that is not finite, a smaller range is 0."""

Point = tuple[float, float]
Band = tuple[float, float, float]


@dataclass(frozen=True)
class Series:
    """One line: points (x, y) in order of x; one without a drawable y breaks it. `band`: (x, low, high)."""

    name: str
    points: Sequence[tuple[float, float | None]]
    band: Sequence[Band] = ()


@dataclass(frozen=True)
class Frame:
    """The plotting area of a picture of `width` x `height` units, and the data ranges that it shows."""

    width: int
    height: int
    xs: tuple[float, float]
    ys: tuple[float, float]
    left: int = 50
    right: int = 16
    top: int = 10
    bottom: int = 34

    def x(self, value: float) -> float:
        """Horizontal position of a data value."""
        low, high = self.xs
        return round(self.left + (value - low) / ((high - low) or 1) * (self.width - self.left - self.right), 1)

    def y(self, value: float) -> float:
        """Vertical position of a data value."""
        low, high = self.ys
        inside = self.height - self.top - self.bottom
        return round(self.top + (high - value) / ((high - low) or 1) * inside, 1)


def line_plot(
    title: str,
    series: Sequence[Series],
    x_label: str,
    *,
    width: int = 420,
    height: int = HEIGHT,
    cover: Sequence[float] = (),
) -> Markup:
    """Lines over a common axis of whole numbers, each with an optional band; empty markup without anything to draw.

    The y axis covers the values of `cover` too: 0 for figures whose size matters and not only their change, the range
    of other plots for figures that are to be compared.
    """
    drawn = [Series(line.name, _thin(line.points), line.band) for line in series]
    values = [value for line in drawn for _, value in _present(line.points)]
    values += [end for line in drawn for _, low, high in line.band for end in (low, high)]
    places = [x for line in series for x, _ in line.points]
    run = max((math.ceil(len(line.points) / MOST_POINTS) for line in series), default=1)
    x_label += f" (means of {run})" if run > 1 else ""
    if not values:
        return Markup("")
    ticks = nice_ticks(min([*values, *cover]), max([*values, *cover]))
    spread = (min(places), max(places)) if min(places) < max(places) else (places[0] - 0.5, places[0] + 0.5)
    frame = Frame(width, height, spread, (ticks[0], ticks[-1]), left=_left(ticks))
    x_ticks = [tick for tick in nice_ticks(*spread, most=6, whole=True) if spread[0] <= tick <= spread[1]]
    parts = [axes(frame, ticks, x_ticks, x_label)]
    parts += [_line(frame, line, index) for index, line in enumerate(drawn)]
    return _picture(title, frame, parts)


def column_plot(title: str, columns: Sequence[tuple[str, float]], x_label: str, *, width: int = 420) -> Markup:
    """Vertical columns, one per (label, value), with the value above each; empty markup without columns."""
    if not columns:
        return Markup("")
    ticks = nice_ticks(0, max(value for _, value in columns))
    frame = Frame(width, HEIGHT, (0, len(columns)), (0, ticks[-1] or 1), left=_left(ticks), top=18)
    parts = [axes(frame, ticks, [], x_label)]
    every = math.ceil(len(columns) / 16)
    for index, (label, value) in enumerate(columns):
        left, right = frame.x(index + 0.15), frame.x(index + 0.85)
        middle, top = frame.x(index + 0.5), frame.y(value)
        parts.append(
            Markup('<rect class="bar" x="{}" y="{}" width="{}" height="{}" rx="2"/>').format(
                left, top, round(right - left, 1), round(frame.y(0) - top, 1)
            )
        )
        if index % every == 0:
            parts.append(caption(middle, frame.height - frame.bottom + 15, plain(label), "middle"))
        if len(columns) <= 16:
            parts.append(caption(middle, top - 4, number(value, 0), "middle"))
    return _picture(title, frame, parts)


def nice_ticks(low: float, high: float, most: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers from at most `low` to at least `high`, about `most` of them, strictly rising."""
    largest = max(abs(low), abs(high))
    if low == high == 0:
        low, high = 0.0, 1.0  # nothing happened, of what has no negative values
    elif high - low <= 1e-9 * largest or largest < SMALLEST:
        margin = largest * 0.1 if largest >= SMALLEST else 0.5
        low, high = low - margin, high + margin
    raw = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(factor * power for factor in factors if factor * power >= raw * 0.999)
    step = max(1.0, step) if whole else step
    start, stop = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(start, stop + 1)]


def _thin(points: Sequence[tuple[float, float | None]]) -> Sequence[tuple[float, float | None]]:
    """At most MOST_POINTS points: means of consecutive runs of points; a run without any finite value is a gap."""
    if len(points) <= MOST_POINTS:
        return points
    size = math.ceil(len(points) / MOST_POINTS)
    thinned: list[tuple[float, float | None]] = []
    for start in range(0, len(points), size):
        run = points[start : start + size]
        present = [value for _, value in _present(run)]
        mean = sum(present) / len(present) if present else None
        thinned.append((run[len(run) // 2][0], mean))
    return thinned


def _drawable(value: float | None) -> TypeGuard[float]:
    return value is not None and abs(value) <= LARGEST


def _present(points: Sequence[tuple[float, float | None]]) -> list[Point]:
    return [(x, y) for x, y in points if _drawable(y)]


def _segments(points: Sequence[tuple[float, float | None]]) -> list[list[Point]]:
    """Runs of consecutive points that can be drawn."""
    runs: list[list[Point]] = [[]]
    for x, y in points:
        if _drawable(y):
            runs[-1].append((x, y))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _line(frame: Frame, series: Series, index: int) -> Markup:
    parts: list[Markup] = []
    if series.band:
        upper = [f"{frame.x(x)},{frame.y(high)}" for x, _, high in series.band]
        lower = [f"{frame.x(x)},{frame.y(low)}" for x, low, _ in reversed(series.band)]
        parts.append(Markup('<polygon class="band s{}" points="{}"/>').format(index, " ".join(upper + lower)))
        parts += [_whisker(frame, band, index) for band in series.band if len(series.band) <= MARKERS]
    for run in _segments(series.points):
        path = " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y in run)
        parts.append(Markup('<polyline class="line s{}" points="{}"/>').format(index, path))
    if len(series.points) <= MARKERS:
        for x, y in _present(series.points):
            label = f"{plain(series.name)}, {number(x, 0)}: {figure(y)}"
            parts.append(
                Markup('<circle class="dot s{}" cx="{}" cy="{}" r="3"><title>{}</title></circle>').format(
                    index, frame.x(x), frame.y(y), label
                )
            )
    return Markup("").join(parts)


def _whisker(frame: Frame, band: Band, index: int) -> Markup:
    x, low, high = band
    return Markup('<line class="whisker s{}" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
        index, frame.x(x), frame.x(x), frame.y(low), frame.y(high)
    )


def axes(frame: Frame, ticks: Sequence[float], x_ticks: Sequence[float], x_label: str) -> Markup:
    """Horizontal grid lines with their numbers, numbers below, and the label of the x axis."""
    right, base = frame.width - frame.right, frame.height - frame.bottom
    parts: list[Markup] = []
    for tick in ticks:
        y = frame.y(tick)
        css = "axis" if tick == ticks[0] else "grid"
        parts.append(Markup('<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(css, frame.left, right, y, y))
        parts.append(caption(frame.left - 6, y + 4, _tick(tick, ticks), "end"))
    parts += [caption(frame.x(tick), base + 15, _tick(tick, x_ticks), "middle") for tick in x_ticks]
    parts.append(caption((frame.left + right) / 2, frame.height - 4, plain(x_label), "middle", "axis-label"))
    return Markup("").join(parts)


def _left(ticks: Sequence[float]) -> int:
    """Room for the longest number of the y axis."""
    return max(50, 14 + math.ceil(7.2 * max(len(_tick(tick, ticks)) for tick in ticks)))


def _tick(value: float, ticks: Sequence[float]) -> str:
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    largest = max(abs(tick) for tick in ticks)
    if largest >= 1e5 or (0 < largest < 1e-3):
        return figure(value)
    decimals = next(places for places in range(16) if math.isclose(step, round(step, places), rel_tol=1e-6))
    return number(value, decimals)


def caption(x: float, y: float, text: str, anchor: str, css: str = "tick") -> Markup:
    """A text that starts, ends or has its middle at a place."""
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(css, x, y, anchor, text)


def _picture(title: str, frame: Frame, parts: Sequence[Markup]) -> Markup:
    return Markup('<svg role="img" viewBox="0 0 {} {}"><title>{}</title>{}</svg>').format(
        frame.width, frame.height, plain(title), Markup("").join(parts)
    )
