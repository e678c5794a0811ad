from __future__ import annotations

import itertools
import math
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.reporting.plots import MOST_POINTS, Series, column_plot, line_plot, nice_ticks


def parse(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def test_a_plot_has_a_role_and_a_title_and_escapes_both():
    picture = parse(line_plot("score & <more>", [Series("a<b", [(0, 0.1), (1, 0.2)])], "step"))
    assert picture.get("role") == "img"
    assert picture.findtext("title") == "score & <more>"
    assert picture.findtext("circle/title") == "a<b, 0: 0.1"


def test_points_lie_where_their_values_say():
    picture = parse(line_plot("t", [Series("s", [(0, 0.0), (1, 0.5), (2, 1.0)])], "x"))
    dots = [(float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in picture.iter("circle")]
    assert dots[1][0] == pytest.approx((dots[0][0] + dots[2][0]) / 2, abs=0.1)
    assert dots[1][1] == pytest.approx((dots[0][1] + dots[2][1]) / 2, abs=0.1)
    assert dots[0][1] > dots[2][1]


def test_a_missing_or_infinite_value_breaks_the_line():
    points = [(0, 1.0), (1, 2.0), (2, None), (3, 1.0), (4, math.nan), (5, math.inf), (6, 2.0)]
    picture = parse(line_plot("t", [Series("s", points)], "x"))
    runs = [line.get("points", "").count(",") for line in picture.iter("polyline")]
    assert runs == [2, 1, 1]


def test_nothing_to_draw_gives_nothing():
    assert line_plot("t", [Series("s", [(0, None), (1, math.nan)])], "x") == ""
    assert line_plot("t", [], "x", cover=[0.0]) == ""
    assert column_plot("t", [], "x") == ""


def test_an_interval_band_spans_its_ends():
    picture = parse(line_plot("t", [Series("s", [(0, 0.5), (1, 0.6)], [(0, 0.4, 0.6), (1, 0.5, 0.7)])], "x"))
    band = next(iter(picture.iter("polygon")))
    assert band.get("points", "").count(",") == 4
    assert len(list(picture.iter("line"))) > 2


def test_long_lines_are_thinned_to_means():
    picture = parse(line_plot("t", [Series("s", [(step, step % 2) for step in range(10_000)])], "x"))
    (line,) = picture.iter("polyline")
    assert line.get("points", "").count(",") <= MOST_POINTS
    assert not list(picture.iter("circle"))
    assert "x (means of 17)" in [text.text for text in picture.iter("text")]


def test_a_plot_of_shares_starts_at_zero():
    texts = [
        text.text for text in parse(line_plot("t", [Series("s", [(0, 0.9), (1, 0.9)])], "x", cover=[0.0])).iter("text")
    ]
    assert any(text and float(text) == 0 for text in texts[:-1] if text)


def test_columns_are_as_high_as_their_values():
    bars = list(parse(column_plot("t", [("2", 10.0), ("3", 20.0)], "members")).iter("rect"))
    heights = [float(bar.get("height", "")) for bar in bars]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.booleans())
def test_ticks_cover_their_range_in_rising_steps(low: float, width: float, whole: bool):
    ticks = nice_ticks(low, low + width, whole=whole)
    assert ticks[0] <= low + abs(low) * 1e-9 + width * 1e-6
    assert ticks[-1] >= low + width - abs(low) * 1e-9 - width * 1e-6
    assert all(b > a for a, b in itertools.pairwise(ticks))
    assert len(ticks) <= 12


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=50))
def test_any_values_give_well_formed_markup(values: list[float]):
    svg = line_plot("t", [Series("s", list(enumerate(values)))], "x")
    assert svg == "" or parse(svg).tag == "svg"
    assert "nan" not in svg
    assert "inf" not in svg.replace("infinity", "")


@pytest.mark.parametrize(
    "values", [[1e308, -1e308], [1e-320, 0.0], [1.0, 1.0 + 1e-15], [1e15, 1e15 + 1], [-1e99, 1e99]]
)
def test_extreme_values_are_drawn_or_left_out(values: list[float]):
    assert len(line_plot("t", [Series("s", list(enumerate(values)))], "x")) < 3000
