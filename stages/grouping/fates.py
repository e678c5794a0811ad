"""Why a usable call ended up in no group."""

from __future__ import annotations

import numpy as np
import polars as pl

from stages.grouping.groups import Members
from stages.grouping.reasons import REASONS, Reason
from stages.grouping.runs import Ints

_NONE = 255


def fates(calls: pl.DataFrame, members: Members, times: Ints, rows: pl.DataFrame, *, by: str) -> pl.DataFrame:
    """Fill in the reason of every usable call that is no written member's source: that of its own place.

    Args:
        calls: judged calls, `reason` null where usable.
        members: candidates, with `small` in `groups`.
        times: how often each candidate was selected.
        rows: the members written.
        by: the column of calls that a member's `row` counts: `row`, or `r` for trajectories.
    """
    codes = {name: code for code, name in enumerate(REASONS)}
    small = members.spread("small").to_numpy()
    fate = np.where(small, codes["small_group"], np.where(times == 0, codes["not_selected"], codes["flat_group"]))
    row, own = members.rows.get_column("row").to_numpy(), (members.rows.get_column("copy") == 0).to_numpy()
    top = calls.get_column(by).max()
    why = np.full(1 + (top if isinstance(top, int) else 0), _NONE, dtype=np.uint8)
    why[row[own]] = fate[own]
    why[rows.get_column("row").to_numpy()] = _NONE
    reasons = pl.select(pl.when(pl.Series(why) != _NONE).then(pl.Series(why))).to_series().cat.to(Reason)
    if by != "row":
        reasons = reasons.gather(calls.get_column(by))
    return calls.with_columns(pl.coalesce("reason", reasons).alias("reason")) if len(calls) else calls
