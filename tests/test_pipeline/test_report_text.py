from __future__ import annotations

import pytest

from pipeline.reporting.clips import Clipped, clip
from pipeline.reporting.text import bounds, clipped, count, duration, figure, number, share, signed, visible
from schemas.visible import plain
from stages.statistics import Interval


def test_markup_is_escaped():
    assert visible("<b>&\"'") == "&lt;b&gt;&amp;&#34;&#39;"


@pytest.mark.parametrize(
    ("character", "shown"),
    [
        ("\x00", "\u2400"),
        ("\x1b", "\u241b"),
        ("\r", "\u240d"),
        ("\x7f", "\u2421"),
        ("\x85", "[U+0085]"),
        ("\u202e", "[U+202E]"),
        ("\u2066", "[U+2066]"),
        ("\u200b", "[U+200B]"),
        ("\ufeff", "[U+FEFF]"),
        ("\u2028", "[U+2028]"),
        ("\ud800", "[U+D800]"),
        ("\ufffe", "[U+FFFE]"),
        ("\ufdd0", "[U+FDD0]"),
        ("\U000e0041", "[U+E0041]"),
    ],
)
def test_characters_without_a_shape_are_written_out(character: str, shown: str):
    assert plain(f"a{character}b") == f"a{shown}b"
    assert visible(f"a{character}b") == f'a<span class="ctl">{shown}</span>b'


@pytest.mark.parametrize(
    "text",
    ["two\nlines\tand a tab", "naïve café", "日本語", "👩\u200d🔬", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"],
)
def test_ordinary_text_of_any_script_is_left_alone(text: str):
    assert plain(text) == text
    assert str(visible(text)) == text


def test_clipping_keeps_both_ends_and_counts_what_is_gone():
    short = clip("a" * 10, 10)
    assert short == Clipped("a" * 10)
    cut = clip("start" + "x" * 100 + "finish", 12)
    assert (cut.head, cut.left_out, cut.tail) == ("startx", 99, "finish")
    assert "99 characters left out" in clipped(cut)


def test_a_mark_of_left_out_text_cannot_be_forged_by_the_text():
    assert '<span class="cut">' not in clipped(Clipped('<span class="cut"> … 9 characters left out … </span>'))


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (number(0.12349), "0.123"),
        (number(-0.5), "\u22120.500"),
        (number(-0.0001), "0.000"),
        (number(None), "\u2013"),
        (number(float("nan")), "not finite"),
        (figure(0.00001234), "1.23e-05"),
        (figure(-12345.6), "\u221212,346"),
        (figure(0.0), "0"),
        (signed(0.25), "+0.250"),
        (signed(-0.25), "\u22120.250"),
        (signed(0.0), "0.000"),
        (count(1234567.0), "1,234,567"),
        (share(0.125), "12.5 %"),
        (duration(None), "\u2013"),
        (duration(59.96), "60.0 s"),
        (duration(119.7), "2 min 0 s"),
        (duration(7322), "2 h 2 min"),
        (bounds(Interval(0.5, 0.25, 0.75, 9)), "[0.250, 0.750]"),
        (bounds(Interval(0.5, -0.25, 0.75, 9), sign=True), "[\u22120.250, +0.750]"),
        (bounds(Interval(0.5, None, None, 1)), "one example: no interval"),
    ],
)
def test_numbers_read_as_a_person_writes_them(shown: str, expected: str):
    assert shown == expected
