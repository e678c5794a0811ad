"""The study's picture: what a strategy costs against what it scores, a panel a task, as one SVG file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pipeline.reporting.plots import Frame, axes, caption, nice_ticks
from pipeline.reporting.text import duration, number
from pipeline.study.strategies import title_of
from pipeline.study.table import Table, pareto_front
from schemas.visible import plain
from stages.statistics import Interval

WIDTH, HEIGHT, LINE = 430, 300, 18
COLOURS = ("#2a62c9", "#c2571a", "#22866a", "#8a4fb3", "#b23a5e", "#77702a", "#1391a5", "#6b7280")
STYLE = Markup("""
.study { background: #ffffff; font-family: system-ui, sans-serif; }
.study text { font-size: 12px; fill: #444a55; }
.study .title { font-size: 13px; font-weight: 600; fill: #1d2025; }
.study .grid { stroke: #e2e4e8; } .study .axis { stroke: #8a909b; }
.study .front { fill: none; stroke: #8a909b; stroke-dasharray: 4 3; }
.study .whisker { stroke-width: 1.5; opacity: 1; } .study .dot { stroke: #ffffff; }
""")


@dataclass(frozen=True)
class Point:
    """One strategy on one task."""

    strategy: str
    colour: str
    cost: float
    quality: Interval


def pareto_picture(table: Table, *, gpu: bool) -> Markup:
    """The picture as an SVG document; strategies whose cost is not known are left out.

    Args:
        table: of the study.
        gpu: whether cost is seconds by the clock, of the one GPU, instead of core-seconds.
    """
    unit = "GPU-seconds" if gpu else "core-seconds"
    panels = [_panel(table, task, place, unit, gpu=gpu) for place, task in enumerate(table.tasks)]
    legend = [_legend(name, place) for place, name in enumerate(table.strategies)]
    size = (WIDTH * len(table.tasks), HEIGHT + LINE * len(table.strategies) + 12)
    head = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" class="study" role="img" width="{}" height="{}" viewBox="0 0 {} {}">'
    )
    parts = [
        head.format(*size, *size),
        Markup("<title>{}</title><style>{}</style>").format(f"{plain(table.name)}: cost and quality", STYLE),
        *panels,
        *legend,
        Markup("</svg>\n"),
    ]
    return Markup("").join(parts)


def _panel(table: Table, task: str, place: int, unit: str, *, gpu: bool) -> Markup:
    points = _points(table, task, gpu=gpu)
    inside = [caption(WIDTH / 2, 16, f"{plain(task)}, {table.split} score", "middle", "title")]
    if points:
        frame, ticks, x_ticks = _frame(points)
        inside.append(axes(frame, ticks, x_ticks, f"{unit} to make the program (mean of a run)"))
        inside.append(_front(frame, points))
        inside += [_dot(frame, point) for point in points]
    else:
        inside.append(caption(WIDTH / 2, HEIGHT / 2, "nothing finished yet", "middle"))
    return Markup('<g transform="translate({} 0)">{}</g>').format(place * WIDTH, Markup("").join(inside))


def _points(table: Table, task: str, *, gpu: bool) -> list[Point]:
    points: list[Point] = []
    for place, strategy in enumerate(table.strategies):
        cell, cost = table.cells.get((strategy, task)), table.costs.get((strategy, task))
        spent = None if cost is None else cost.seconds if gpu else cost.core_seconds
        if cell is not None and spent is not None:
            points.append(Point(strategy, COLOURS[place % len(COLOURS)], spent, cell.interval))
    return points


def _frame(points: Sequence[Point]) -> tuple[Frame, list[float], list[float]]:
    ends = [end for point in points for end in _ends(point.quality)]
    ticks = nice_ticks(min(ends), max(ends))
    x_ticks = nice_ticks(0, max(point.cost for point in points) or 1.0)
    frame = Frame(WIDTH, HEIGHT, (x_ticks[0], x_ticks[-1]), (ticks[0], ticks[-1]), top=28, right=24)
    return frame, ticks, x_ticks


def _ends(quality: Interval) -> tuple[float, float]:
    if quality.low is None or quality.high is None:
        return quality.estimate, quality.estimate
    return quality.low, quality.high


def _front(frame: Frame, points: Sequence[Point]) -> Markup:
    """The Pareto front as a staircase: what quality is to be had for what cost."""
    best = {point.strategy: (point.cost, point.quality.estimate) for point in points}
    corners: list[str] = []
    for name in pareto_front(best):
        cost, quality = best[name]
        if corners:
            corners.append(f"{frame.x(cost)},{corners[-1].partition(',')[2]}")
        corners.append(f"{frame.x(cost)},{frame.y(quality)}")
    return Markup('<polyline class="front" points="{}"/>').format(" ".join(corners))


def _dot(frame: Frame, point: Point) -> Markup:
    x, y = frame.x(point.cost), frame.y(point.quality.estimate)
    low, high = _ends(point.quality)
    told = f"{title_of(point.strategy)}: {number(point.quality.estimate)} for {duration(point.cost)}"
    return Markup(
        '<line class="whisker" style="stroke:{}" x1="{}" x2="{}" y1="{}" y2="{}"/>'
        '<circle class="dot" style="fill:{}" cx="{}" cy="{}" r="5"><title>{}</title></circle>'
    ).format(point.colour, x, x, frame.y(low), frame.y(high), point.colour, x, y, plain(told))


def _legend(name: str, place: int) -> Markup:
    y = HEIGHT + 14 + LINE * place
    return Markup('<circle fill="{}" cx="{}" cy="{}" r="5"/>{}').format(
        COLOURS[place % len(COLOURS)], 24, y - 4, caption(36, y, plain(title_of(name)), "start")
    )
