"""Figures per module and position, all exact sums: what the summary, the manifest and the report show."""

from __future__ import annotations

import polars as pl

from stages.grouping.job import Result
from stages.grouping.pad import FILL

FINE = 10**6
"""Advantages are summed in whole millionths, so that the summary does not depend on the order of a sum."""

FIGURES = {
    "invocations": "sum",
    "rewards": "sum",
    "reward_sum": "sum",
    "reward_min": "min",
    "reward_max": "max",
    "groups": "sum",
    "flat_groups": "sum",
    "small_groups": "sum",
    "formed": "sum",
    "range_sum": "sum",
    "size_min": "min",
    "size_max": "max",
    "candidates": "sum",
    "not_selected": "sum",
    "before_sum": "sum",
    "selected": "sum",
    "after_sum": "sum",
    "members": "sum",
    "copies_fill": "sum",
    "copies_select": "sum",
    "attempts": "sum",
    "weighted_sum": "sum",
}
"""The figures of a place (module, position), and how those of two chunks become one. Rewards and advantages
are in millionths."""

PLACE = ("module", "p")


def tally(result: Result) -> pl.DataFrame:
    """A chunk's figures per place."""
    parts = [_of_calls(result), _of_groups(result)]
    return add_up([part.select(*PLACE, pl.exclude(PLACE).cast(pl.Int128)) for part in parts])


def add_up(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Figures of several chunks as one; exact, so that their order and number do not matter."""
    empty = pl.DataFrame(schema={"module": pl.String, "p": pl.Int32, **dict.fromkeys(FIGURES, pl.Int128)})
    rows = pl.concat([empty, *parts], how="diagonal")
    how = [getattr(pl.col(name), kind)() for name, kind in FIGURES.items()]
    return rows.group_by(PLACE).agg(how).sort(PLACE)


def reasons(result: Result) -> pl.DataFrame:
    """A chunk's excluded calls per place and reason: `module`, `p`, `reason`, `rows`."""
    out = result.calls.filter(pl.col("reason").is_not_null()).group_by("m", "p", "reason").agg(rows=pl.len())
    return _named(out, result.chunk.modules).with_columns(
        pl.col("reason").cast(pl.String), pl.col("rows").cast(pl.Int64)
    )


def _named(frame: pl.DataFrame, modules: tuple[str, ...]) -> pl.DataFrame:
    names = pl.Series("module", modules, dtype=pl.String).gather(frame.get_column("m"))
    return frame.drop("m").with_columns(names, pl.col("p").cast(pl.Int32))


def _of_calls(result: Result) -> pl.DataFrame:
    """Rewards are those of usable final attempts: before padding, selection and exclusion of groups."""
    sound = pl.col("reason").is_null() & pl.col("final")
    frame = result.grouped.calls.lazy().select("m", "p", q=pl.when(sound).then("q"))
    figures = frame.group_by("m", "p").agg(
        invocations=pl.len(),
        rewards=pl.col("q").count(),
        reward_sum=pl.col("q").sum(),
        reward_min=pl.col("q").min(),
        reward_max=pl.col("q").max(),
    )
    return _named(figures.collect(), result.chunk.modules)


def _of_groups(result: Result) -> pl.DataFrame:
    """Figures of groups and of their members, summed over each group first: a run of rows."""
    members, chunk = result.grouped.members, result.grouped.chunk
    sums = _of_members(result)
    groups = members.groups.with_columns(m=pl.col("kind") // len(chunk.keys), **sums)
    live, written = ~pl.col("small"), ~pl.col("out")
    found = groups.group_by("m", "p").agg(
        *(pl.col(name).filter(live).sum() for name in sorted(sums.keys() & FORMED)),
        *(pl.col(name).filter(written).sum() for name in sorted(sums.keys() - FORMED)),
        groups=written.sum(),
        flat_groups=pl.col("flat").sum(),
        small_groups=pl.col("small").sum(),
        formed=live.sum(),
        range_sum=pl.col("range").filter(live).sum(),
        size_min=pl.col("members").filter(written).min(),
        size_max=pl.col("members").filter(written).max(),
    )
    return _named(found, chunk.modules)


def _of_members(result: Result) -> dict[str, pl.Series]:
    """Per group, sums over its candidates."""
    members, times = result.grouped.members, pl.Series(result.grouped.times)
    rows, size, runs = members.rows, pl.Series(members.runs.sizes), members.runs
    fine, early = _fine(result.advantage), rows.get_column("early")
    counted = fine if not early.any() else fine * (~early).cast(pl.Int64)
    changed = bool((times != 1).any())
    weighted = runs.sum(fine.abs() * times if changed else fine.abs()) * members.groups.get_column("weight")
    before, stand = runs.sum(counted), runs.sum(times) if changed else size
    candidates, dropped = members.groups.get_column("n"), runs.count(times == 0)
    return {
        "candidates": candidates,
        "not_selected": dropped,
        "before_sum": before,
        "after_sum": runs.sum(counted * times) if changed else before,
        "members": stand,
        "attempts": size - candidates,
        "selected": stand - (size - candidates),
        "copies_select": stand - size + dropped,
        "copies_fill": runs.count((rows.get_column("copy") == FILL) & (times > 0)),
        "weighted_sum": weighted.round().cast(pl.Int64),
    }


FORMED = {"candidates", "not_selected", "before_sum", "selected", "after_sum"}
"""Figures over the members of all groups with enough rollouts; the others are over the groups written."""


def _fine(value: pl.Series) -> pl.Series:
    return (value.fill_nan(0.0) * FINE).round().cast(pl.Int64)
