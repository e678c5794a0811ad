"""Advantages of a group's members, from exact integer sums.

With rewards in millionths and the group's smallest subtracted, n, the sum and the sum of squares are integers: mean
and variance are the same whatever order, thread or engine added them up. Only the last division is in floats.

A member's advantage is (reward - baseline) / (scale + eps).

- The baseline is the mean over the group's counted members: those selected, or all (`baseline_over`). Teachers'
  members are compared with the student's mean. `leave_one_rollout_out` takes the mean over the other rollouts:
  a rollout's copies and attempts leave together. Where nothing else is left, the group's mean.
- The scale is the standard deviation over the same members of the student (`ddof`), or that of the module over the
  whole table (`module_std`), or nothing (`none`: the advantage is the plain difference). So a student's advantage is
  what it would be without teachers. A teacher's own is divided by the deviation of all counted members where that is
  larger: else a teacher far above a student that always fails would outweigh every other group.
- Earlier attempts are compared with the others, and count in neither.
- A group whose counted rewards lie within `min_spread` is flat: its advantages are exactly 0.

With `small_groups = "example_baseline"` a group below `min_group` takes mean and deviation over the rollouts of its
example (what its module's calls in each are worth); where the example has too few rollouts it is left out like others.

One module, one call, no selection, no copies: exactly the advantages of TRL's GRPO trainer (ddof 1, eps 1e-4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from stages.grouping.groups import Members
from stages.grouping.rules import Rules
from stages.grouping.runs import Ints


@dataclass(frozen=True)
class ModuleMoments:
    """Exact sums over a module's counted members in the whole table: number, rewards, squared rewards."""

    n: int = 0
    s1: int = 0
    s2: int = 0

    def __add__(self, other: ModuleMoments) -> ModuleMoments:
        return ModuleMoments(self.n + other.n, self.s1 + other.s1, self.s2 + other.s2)

    def std(self, ddof: int) -> float:
        """Standard deviation in millionths; 0 for fewer than two members."""
        if self.n < 2:
            return 0.0
        return math.sqrt(float(self.n * self.s2 - self.s1 * self.s1) / float(self.n * (self.n - ddof)))


def module_moments(members: Members, kinds: int, modules: tuple[str, ...]) -> dict[str, ModuleMoments]:
    """Moments of each module over the groups with a mean of their own.

    Args:
        members: with `sn`, `s1`, `s2`, `low` and `thin` in `groups`.
        kinds: keys per module.
        modules: names by rank.
    """
    wide = {name: pl.col(of).cast(pl.Int128) for name, of in (("n", "sn"), ("low", "low"), ("s1", "s1"), ("s2", "s2"))}
    table = members.groups.filter(~pl.col("small"), ~pl.col("thin")).select(m=pl.col("kind") // kinds, **wide)
    sums = table.group_by("m").agg(
        pl.col("n").sum(),
        s1=(pl.col("s1") + pl.col("n") * pl.col("low")).sum(),
        s2=(pl.col("s2") + 2 * pl.col("s1") * pl.col("low") + pl.col("n") * pl.col("low") * pl.col("low")).sum(),
    )
    return {modules[m]: ModuleMoments(n, s1, s2) for m, n, s1, s2 in sums.iter_rows()}


def std(n: pl.Expr, s1: pl.Expr, s2: pl.Expr, ddof: int) -> pl.Expr:
    """Standard deviation in millionths from exact sums; 0 where n <= ddof."""
    variance = (n * s2 - s1 * s1).cast(pl.Float64) / (n * (n - ddof)).cast(pl.Float64)
    return pl.when(n > ddof).then(variance.sqrt()).otherwise(0.0)


def advantages(members: Members, counted: Ints, teacher: pl.Series | None, rules: Rules) -> pl.Series:
    """The advantage of every row of `members`.

    Args:
        members: with `low`, `flat`, `scale` and `teacher_scale` (in millionths, eps included; `none`: 1e6) and the
            baseline's sums `bn`, `bs1` in `groups`.
        counted: how often each row counts in the baseline (0 for earlier attempts and teachers).
        teacher: per row whether a teacher made it; None where no teacher took part.
        rules: the recipe's rules.
    """
    d = members.rows.get_column("q") - members.spread("low")
    frame = pl.DataFrame({"d": d, "n": members.spread("bn"), "s1": members.spread("bs1")})
    if rules.group.baseline == "leave_one_rollout_out":
        frame = _without_own(frame, members, counted)
    scale = members.spread("scale")
    if teacher is not None:
        scale = members.spread("teacher_scale").zip_with(teacher, scale)
    frame = frame.with_columns(flat=members.spread("flat"), scale=scale)
    gap = (pl.col("n") * pl.col("d") - pl.col("s1")).cast(pl.Float64) / pl.col("n").cast(pl.Float64)
    return frame.select(pl.when("flat").then(0.0).otherwise(gap / pl.col("scale"))).to_series()


def _without_own(frame: pl.DataFrame, members: Members, counted: Ints) -> pl.DataFrame:
    """Take each rollout's own part out of `n` and `s1`, unless nothing else would be left."""
    own = frame.with_columns(members.rows.get_column("early"), w=pl.Series(counted), place=_slots(members))
    attempt = (pl.col("early") & (pl.col("place") == pl.col("place").shift())).fill_null(False)
    own = own.with_columns(
        w=pl.when(attempt).then(pl.col("w").shift()).otherwise("w"),
        own=pl.when(attempt).then(pl.col("d").shift()).otherwise("d"),
    )
    w = pl.when(pl.col("w") < pl.col("n")).then("w").otherwise(0)
    return own.select("d", n=pl.col("n") - w, s1=pl.col("s1") - w * pl.col("own"))


def _slots(members: Members) -> pl.Series:
    """Numbers rows by (group, rollout): an earlier attempt has the number of its final one."""
    return pl.Series(members.runs.of.astype(np.int64) << 32) + members.rows.get_column("r").cast(pl.Int64)
