"""Figures per module and position, all exact sums: what the summary, the manifest and the report show."""

from __future__ import annotations

import polars as pl

from stages.grouping.job import Result

FINE = 10**9
"""Advantages are summed in whole billionths, so that the summary does not depend on the order of a sum."""

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
    "moving": "sum",
}
"""The figures of a place (module, position), and how those of two chunks become one. Rewards are in millionths,
advantages in billionths."""

PLACE = ("module", "p")


def tally(result: Result) -> pl.DataFrame:
    """A chunk's figures per place."""
    parts = [_of_calls(result), _of_groups(result), _of_candidates(result), _of_rows(result)]
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
    chunk = result.grouped.chunk
    live = ~pl.col("small")
    figures = (
        result.groups.with_columns(m=pl.col("kind") // len(chunk.keys))
        .group_by("m", "p")
        .agg(
            groups=(~pl.col("out")).sum(),
            flat_groups=pl.col("flat").sum(),
            small_groups=pl.col("small").sum(),
            formed=live.sum(),
            range_sum=pl.col("range").filter(live).sum(),
        )
    )
    return _named(figures, chunk.modules)


def _of_candidates(result: Result) -> pl.DataFrame:
    """Means of the advantage before and after selection, over counted members of groups that are not small."""
    live = ~result.groups.get_column("small").gather(result.candidates.get_column("gid"))
    rows = result.candidates.filter(live, ~pl.col("early"))
    of = result.groups.select("kind", "p")[rows.get_column("gid")]
    frame = rows.hstack(of).select("kind", "p", "times", fine=_fine(pl.col("advantage")))
    figures = frame.group_by("kind", "p").agg(
        candidates=pl.len(),
        not_selected=(pl.col("times") == 0).sum(),
        before_sum=pl.col("fine").sum(),
        selected=pl.col("times").sum(),
        after_sum=(pl.col("fine") * pl.col("times")).sum(),
    )
    figures = figures.with_columns(m=pl.col("kind") // len(result.grouped.chunk.keys)).drop("kind")
    return _named(figures, result.grouped.chunk.modules)


def _fine(value: pl.Expr) -> pl.Expr:
    return (value * FINE).round().cast(pl.Int128)


def _of_rows(result: Result) -> pl.DataFrame:
    """Members written; those of a trajectory stand at the place of their call."""
    rows, chunk = result.rows, result.grouped.chunk
    if chunk is result.chunk:
        of = result.groups.select("kind", "p")[rows.get_column("gid")]
        of = of.select("p", m=pl.col("kind") // len(chunk.keys))
    else:
        of = result.calls.select("m", "p")[rows.get_column("row")]
    worth = _fine((pl.col("advantage") * pl.col("weight")).abs())
    figures = (
        rows.hstack(of)
        .group_by("m", "p")
        .agg(
            members=pl.len(),
            copies_fill=(pl.col("copy") == 1).sum(),
            copies_select=(pl.col("copy") == 2).sum(),
            attempts=pl.col("early").sum(),
            weighted_sum=worth.sum(),
            moving=(pl.col("advantage") != 0).sum(),
        )
    )
    sizes = rows.group_by("gid").agg(size=pl.len()).sort("gid")
    at = result.groups.select("kind", "p")[sizes.get_column("gid")].select("p", m=pl.col("kind") // len(chunk.keys))
    spans = sizes.hstack(at).group_by("m", "p").agg(size_min=pl.col("size").min(), size_max=pl.col("size").max())
    named = [_named(figures, result.chunk.modules), _named(spans, chunk.modules)]
    return pl.concat(named, how="diagonal")
