"""Why a usable call ended up in no group."""

from __future__ import annotations

import numpy as np
import polars as pl

from stages.grouping.groups import Members
from stages.grouping.reasons import REASONS, Reason

_NONE = 255


def fates(calls: pl.DataFrame, members: Members, times: pl.Series, rows: pl.DataFrame, *, by: str) -> pl.DataFrame:
    """Fill in the reason of every usable call that is no written member's source: that of its own place.

    Args:
        calls: judged calls, `reason` null where usable.
        members: candidates, with `small` and `flat` in `groups`.
        times: how often each candidate was selected.
        rows: the members written.
        by: the column of calls that a member's `row` counts: `row`, or `r` for trajectories.
    """
    codes = {name: code for code, name in enumerate(REASONS)}
    small = members.groups.get_column("small").gather(members.rows.get_column("gid"))
    own = members.rows.select("row", "copy").with_columns(small.alias("small"), times.alias("times"))
    own = own.filter(pl.col("copy") == 0)
    fate = np.where(
        own.get_column("small").to_numpy(),
        codes["small_group"],
        np.where(own.get_column("times").to_numpy() == 0, codes["not_selected"], codes["flat_group"]),
    )
    top = calls.get_column(by).max()
    size = 1 + (top if isinstance(top, int) else 0)
    why = np.full(size, _NONE, dtype=np.uint8)
    why[own.get_column("row").to_numpy()] = fate
    why[rows.get_column("row").to_numpy()] = _NONE
    reasons = pl.select(pl.when(pl.Series(why) != _NONE).then(pl.Series(why))).to_series().cat.to(Reason)
    return calls.with_columns(pl.coalesce("reason", reasons.gather(calls.get_column(by))).alias("reason"))
