"""From rows to a chunk: whole examples, strings replaced by integers, in one total order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from schemas.errors import ContractError, Violation
from schemas.rollouts import ROLLOUTS
from schemas.validate import SAMPLES, check_rows
from stages.grouping.hashing import fold, fold_strings, start
from stages.grouping.rules import PATH, Rules


class UnknownRolloutError(ContractError):
    """A call's rollout is not in the rollouts table."""


@dataclass(frozen=True)
class Chunk:
    """Whole examples, ready for grouping. `r` is a row of `rollouts`, `row` a row of `calls`.

    Attributes:
        rollouts: sorted by (example_id, rollout_index, rollout_id); beside the table's columns `e` (dense number of the
            example), `first` (row of the example's first rollout) and `size` (the example's rollouts).
        calls: sorted by (r, call_index); `row`, `r`, `m` (rank of the module), `key` (rank of the key columns' value),
            and the columns of `tables._narrow`.
        modules: module names, sorted.
        keys: 64-bit hashes of the key columns' values, sorted; one entry where there are no key columns.
        positions: one more than the largest invocation_index.
        duplicates: rows dropped because an identical one is there.
    """

    rollouts: pl.DataFrame
    calls: pl.DataFrame
    modules: tuple[str, ...]
    keys: tuple[int, ...]
    positions: int
    duplicates: int

    @property
    def kinds(self) -> int:
        """Pairs of (module, key) in the chunk: `kind` is m * keys + key."""
        return len(self.modules) * len(self.keys)


def build(rollouts: pl.DataFrame, calls: pl.DataFrame, rules: Rules, where: str) -> Chunk:
    """Make a chunk of rows that were read.

    Raises:
        ContractError: when rollouts break their contract, two rows of one key differ, or a call has no rollout.
    """
    rollouts, dropped = _order_rollouts(rollouts, where)
    calls = _number(calls, rollouts, where)
    calls, repeated = _order_calls(calls, rollouts, where)
    modules = tuple(calls.get_column("module").unique().sort().to_list())
    codes = calls.get_column("module").cast(pl.Enum(list(modules))).to_physical().cast(pl.UInt32)
    calls = calls.with_columns(codes.alias("m")).with_row_index("row")
    calls, keys = _rank_keys(calls, modules, rules)
    top = calls.get_column("p").max()
    assert top is None or isinstance(top, int)
    return Chunk(rollouts, calls.drop("module"), modules, keys, 1 + (top or 0), dropped + repeated)


def _order_rollouts(frame: pl.DataFrame, where: str) -> tuple[pl.DataFrame, int]:
    height = frame.height
    if frame.get_column("rollout_id").n_unique() < height:
        frame = frame.unique()
    check_rows(frame.to_arrow(), ROLLOUTS, where)
    inside = pl.col("example_id") == pl.col("example_id").shift()
    later = pl.col("rollout_index") > pl.col("rollout_index").shift()
    ordered = (pl.col("example_id") > pl.col("example_id").shift()) | (inside & later)
    if not frame.select(ordered.all()).item():
        frame = frame.sort("example_id", "rollout_index", "rollout_id")
    runs = frame.get_column("example_id").rle().struct.field("len").cast(pl.UInt32)
    firsts = (runs.cum_sum() - runs).cast(pl.Int64)
    frame = frame.with_columns(e=pl.col("example_id").rle_id())
    e = frame.get_column("e")
    return frame.with_columns(first=firsts.gather(e), size=runs.cast(pl.Int64).gather(e)), height - frame.height


def _number(calls: pl.DataFrame, rollouts: pl.DataFrame, where: str) -> pl.DataFrame:
    """Replace rollout_id by `r`. Runs of one id are looked up once; files of ours need no look-up at all."""
    known = rollouts.get_column("rollout_id")
    runs = calls.get_column("rollout_id").rle().struct
    ids, sizes = runs.field("value"), runs.field("len").to_numpy()
    if ids.len() == known.len() and ids.equals(known):
        return calls.drop("rollout_id").with_columns(
            r=pl.Series(np.repeat(np.arange(len(sizes), dtype=np.uint32), sizes))
        )
    index = rollouts.select("rollout_id", r=pl.int_range(pl.len(), dtype=pl.UInt32))
    numbers = ids.to_frame("rollout_id").join(index, on="rollout_id", how="left", maintain_order="left")
    lost = numbers.filter(pl.col("r").is_null())
    if lost.height:
        samples = tuple(f"rollout_id={value}" for value in lost.get_column("rollout_id").head(SAMPLES).to_list())
        rule = Violation("rollout_id is in the rollouts table", lost.height, samples)
        raise UnknownRolloutError("invocations", where, [rule])
    return calls.drop("rollout_id").with_columns(r=pl.Series(np.repeat(numbers.get_column("r").to_numpy(), sizes)))


def _order_calls(calls: pl.DataFrame, rollouts: pl.DataFrame, where: str) -> tuple[pl.DataFrame, int]:
    place = pl.col("r").cast(pl.Int64) * 2**31 + pl.col("call_index")
    calls = calls.with_columns(place=place)
    if not calls.get_column("place").is_sorted():
        calls = calls.sort("place", maintain_order=False)
    again = calls.select(pl.col("place") == pl.col("place").shift()).to_series().fill_null(False)
    if not again.any():
        return calls.drop("place"), 0
    kept = calls.unique(maintain_order=False).sort("place")
    twice = kept.filter(pl.col("place") == pl.col("place").shift())
    if twice.height:
        ids = rollouts.get_column("rollout_id").gather(twice.get_column("r"))
        pairs = zip(ids.to_list(), twice.get_column("call_index").to_list(), strict=True)
        samples = tuple(f"rollout_id={name}, call_index={index}" for name, index in list(pairs)[:SAMPLES])
        rule = Violation("rows of one (rollout_id, call_index) are identical", twice.height, samples)
        raise ContractError("invocations", where, [rule])
    return kept.drop("place"), calls.height - kept.height


def _rank_keys(calls: pl.DataFrame, modules: tuple[str, ...], rules: Rules) -> tuple[pl.DataFrame, tuple[int, ...]]:
    """Add `key`: the rank of the key columns' value, by hash. Ranks keep one order whatever the chunk."""
    names = rules.group.key_columns
    if not names:
        return calls.with_columns(key=pl.lit(0, dtype=pl.UInt32)), (0,)
    state = start(0, calls.height)
    for name in names:
        if name == PATH:
            state = fold(state, _path(calls, modules).to_numpy())
        else:
            values = calls.get_column(f"key:{name}").cast(pl.String)
            state = fold(fold_strings(state, values.fill_null("")), values.is_null().to_numpy())
    hashes = pl.Series("key", state)
    keys = hashes.unique().sort()
    ranks = keys.search_sorted(hashes).cast(pl.UInt32)
    return calls.drop([f"key:{n}" for n in names if n != PATH]).with_columns(ranks.alias("key")), tuple(keys.to_list())


def _path(calls: pl.DataFrame, modules: tuple[str, ...]) -> pl.Series:
    """Per call, a hash of the modules that its rollout called before the call's first attempt, in order.

    The hash is a sum of terms of (module, rank), so that one running sum gives every prefix.
    """
    names = fold_strings(start(1, len(modules)), pl.Series(modules, dtype=pl.String))
    frame = calls.select("r", "m", "p", fresh=pl.struct("r", "m", "p").is_first_distinct())
    frame = frame.with_columns(rank=pl.col("fresh").cum_sum().over("r"))
    hashes = fold(names[frame.get_column("m").to_numpy()], frame.get_column("rank").to_numpy())
    frame = frame.with_columns(pl.Series("term", hashes)).with_columns(pl.col("term") * pl.col("fresh"))
    before = pl.col("term").cum_sum().over("r") - pl.col("term")
    return frame.with_columns(path=before).select(pl.col("path").first().over("r", "m", "p")).to_series()
