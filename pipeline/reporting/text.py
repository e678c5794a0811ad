"""Text and numbers as the page shows them.

Text of a model or a user may hold anything. Escaping alone keeps it from becoming markup; what would still deceive
a reader (control characters, text direction overrides, characters without any shape) is written out visibly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from markupsafe import Markup

from pipeline.reporting.clips import Clipped
from schemas.visible import plain, replacement
from stages.statistics import Interval

ABSENT = "\u2013"


def visible(text: object) -> Markup:
    """Escaped text in which characters that cannot be seen stand as a marked picture or code point."""
    shown: list[str] = []
    for character in str(text):
        replaced = replacement(character)
        if replaced:
            shown.append(Markup('<span class="ctl">{}</span>').format(replaced))
        else:
            shown.append(Markup.escape(character))
    return Markup("").join(shown)


def clipped(text: Clipped | None) -> Markup:
    """A bounded text, with a mark where its middle was left out."""
    if text is None:
        return Markup('<span class="muted">{}</span>').format("none")
    if not text.left_out:
        return visible(text.head)
    mark = Markup('<span class="cut"> … {} characters left out … </span>').format(count(text.left_out))
    return visible(text.head) + mark + visible(text.tail)


def number(value: float | None, digits: int = 3) -> str:
    """A score or a reward: a fixed number of decimals, with a true minus sign."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return "not finite"
    rounded = round(value, digits) + 0.0  # adding 0 turns -0.0 into 0.0
    return _minus(f"{rounded:,.{digits}f}")


def figure(value: float | None) -> str:
    """A figure of any size: three significant digits."""
    if value is None or not math.isfinite(value):
        return number(value)
    if value == 0 or 1e-4 <= abs(value) < 1000:
        return _minus(f"{value:.3g}")
    return number(value, 0) if abs(value) < 1e9 and abs(value) >= 1 else _minus(f"{value:.2e}")


def signed(value: float | None, digits: int = 3) -> str:
    """A difference: always with its sign."""
    text = number(value, digits)
    return f"+{text}" if value is not None and math.isfinite(value) and value > 0 else text


def count(value: float | None) -> str:
    """A whole number with separators."""
    return ABSENT if value is None else f"{round(value):,}"


def plural(number_: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count(number_)} {noun}{'' if number_ == 1 else 's'}"


def share(value: float | None) -> str:
    """A share as a percentage."""
    return ABSENT if value is None else f"{100 * value:.1f} %"


def bounds(interval: Interval | None, *, sign: bool = False) -> str:
    """The ends of an interval in brackets."""
    if interval is None:
        return ABSENT
    if interval.low is None or interval.high is None:
        return "one example: no interval"
    show = signed if sign else number
    return f"[{show(interval.low)}, {show(interval.high)}]"


def difference(interval: Interval | None) -> str:
    """A paired difference with its interval."""
    return ABSENT if interval is None else f"{signed(interval.estimate)} {bounds(interval, sign=True)}"


def duration(seconds: float | None) -> str:
    """Seconds in the two units that a person would say."""
    if seconds is None:
        return ABSENT
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def after(position: int) -> str:
    """Which point of the run the policy at a position stands for; iterations count from 0."""
    return "before training" if position == 0 else f"after iteration {position - 1}"


def by_status(counts: Mapping[str, int]) -> str:
    """Numbers of runs by how they ended, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{status} {count(number_)}" for status, number_ in ordered)


def words(name: str) -> str:
    """A field name in words."""
    return plain(name).replace("_", " ")


def _minus(text: str) -> str:
    return text.replace("-", "\u2212", 1) if text.startswith("-") else text
