"""One chunk of whole examples, from loaded rows to the three tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from schemas.canonical import canonical_json
from schemas.groups import COPY_KINDS
from schemas.recipe import Recipe
from stages.grouping.advantage import group_numbers, moments, with_advantages
from stages.grouping.hashing import fold, fold_strings, start
from stages.grouping.load import Chunk
from stages.grouping.pad import pad
from stages.grouping.reasons import reason
from stages.grouping.rewards import MICRO, judge
from stages.grouping.select import max_variance


@dataclass(frozen=True)
class Result:
    """The stage's tables for a chunk, and their figures."""

    groups: pl.DataFrame
    excluded: pl.DataFrame
    summary: pl.DataFrame
    reasons: dict[str, int]
    metrics: dict[str, Any]


def group_chunk(chunk: Chunk, recipe: Recipe) -> Result:
    """Group a chunk: rewards, PadGroups, selection, advantages, weights, accounts."""
    group, k = recipe.group, recipe.group.k or recipe.rollout.rollouts
    calls = judge(chunk, group).with_row_index("row")
    calls = calls.with_columns(chunk.rollouts.get_column("example").gather(calls.get_column("r")).alias("e"))
    members, calls = pad(chunk, calls, group, recipe.seed)
    members = group_numbers(members)
    stats = moments(members)
    fates = members.filter(pl.col("copy") == 0).select("row", "group")
    small = pl.col("rollouts") < group.min_group
    kept = stats.filter(~small)
    members = members.join(kept.select("group"), on="group", how="semi")
    members, left = max_variance(members, kept, k)
    scored = with_advantages(members, moments(members), group)
    written = scored.filter(~pl.col("flat")) if group.flat == "drop" else scored
    written = written.sort("e", "m", "p", "r", "copy", "attempt", "row")
    calls = _fates(calls, written, fates, stats.filter(small), left)
    return _result(chunk, calls, written, scored, stats.filter(small))


def _fates(
    calls: pl.DataFrame, written: pl.DataFrame, fates: pl.DataFrame, small: pl.DataFrame, left: pl.DataFrame
) -> pl.DataFrame:
    """Give every usable call that is no member's source the reason of its own place in its group."""
    used = written.select("row").unique().with_columns(used=True)
    out = left.filter(pl.col("copy") == 0).select("row", gone=True)
    joined = (
        calls.lazy()
        .join(fates.lazy(), on="row", how="left")
        .join(small.lazy().select("group", small=True), on="group", how="left")
        .join(out.lazy(), on="row", how="left")
        .join(used.lazy(), on="row", how="left")
        .sort("row")
    )
    chosen = (
        pl.when(pl.col("reason").is_not_null() | pl.col("used"))
        .then(pl.col("reason"))
        .when(pl.col("small") | (pl.col("early") & pl.col("group").is_null()))
        .then(reason("small_group"))
        .when("gone")
        .then(reason("not_selected"))
        .otherwise(reason("flat_group"))
    )
    return joined.with_columns(reason=chosen).collect()


def _result(
    chunk: Chunk, calls: pl.DataFrame, written: pl.DataFrame, scored: pl.DataFrame, small: pl.DataFrame
) -> Result:
    groups = _groups(chunk, calls, written)
    silent = chunk.rollouts.with_row_index("r").join(calls.select("r"), on="r", how="anti", maintain_order="left")
    excluded = _excluded(chunk, calls, silent)
    sources = written.get_column("row").n_unique()
    assert sources + excluded.height == calls.height + silent.height, "rows in = distinct sources + excluded"
    reasons = dict(excluded.group_by("reason").len().sort("reason").iter_rows())
    flat = scored.filter("flat").select(pl.col("group").n_unique()).item()
    formed = scored.select(pl.col("group").n_unique()).item()
    metrics = {
        "invocations": calls.height,
        "rollouts": chunk.rollouts.height,
        "groups": groups.get_column("group_id").n_unique(),
        "members": groups.height,
        "flat_groups": flat,
        "flat_share": flat / formed if formed else 0.0,
        "small_groups": small.height,
        "nothing_to_train": not bool((groups.get_column("advantage") != 0).any()),
        "reward": {
            row["module"]: row["reward"]
            for row in groups.group_by("module").agg(pl.col("reward").mean()).sort("module").iter_rows(named=True)
        },
    }
    return Result(groups, excluded, _summary(chunk, calls, groups, scored), reasons, metrics)


def _groups(chunk: Chunk, calls: pl.DataFrame, written: pl.DataFrame) -> pl.DataFrame:
    rollouts = chunk.rollouts[written.get_column("r")]
    names = pl.Series(chunk.modules, dtype=pl.String).gather(written.get_column("m"))
    firsts = written.with_row_index("at").filter(pl.col("group").rle_id().is_first_distinct()).get_column("at")
    ids = _group_ids(rollouts[firsts].get_column("example_id"), names.gather(firsts), written[firsts].get_column("p"))
    number = written.get_column("group").rle_id()
    source = calls[written.get_column("row")]
    return pl.DataFrame(
        {
            "group_id": ids.gather(number),
            "member_index": written.select(pl.int_range(pl.len(), dtype=pl.Int32).over("group")).to_series(),
            "example_id": rollouts.get_column("example_id"),
            "module": names,
            "invocation_index": written.get_column("p"),
            "rollout_id": rollouts.get_column("rollout_id"),
            "call_index": source.get_column("call_index"),
            "attempt": written.get_column("attempt"),
            "copy_kind": pl.Series(COPY_KINDS).gather(written.get_column("copy")),
            "source": rollouts.get_column("source"),
            "policy": rollouts.get_column("policy"),
            "reward": written.get_column("q") / MICRO,
            "advantage": written.get_column("advantage"),
            "weight": pl.repeat(1.0, written.height, eager=True),
        }
    )


def _group_ids(examples: pl.Series, modules: pl.Series, positions: pl.Series) -> pl.Series:
    """128-bit ids, 32 hex digits: hashes of (example_id, module, invocation_index)."""
    lanes = []
    for lane in (1, 2):
        state = fold_strings(fold_strings(start(lane, len(examples)), examples), modules)
        lanes.append(fold(state, positions.to_numpy()))
    data = np.stack(lanes, axis=1).astype(">u8").tobytes().hex()
    return pl.Series([data[at : at + 32] for at in range(0, len(data), 32)], dtype=pl.String)


def _excluded(chunk: Chunk, calls: pl.DataFrame, silent: pl.DataFrame) -> pl.DataFrame:
    out = calls.filter(pl.col("reason").is_not_null())
    ids, names = chunk.rollouts.get_column("rollout_id"), pl.Series(chunk.modules, dtype=pl.String)
    called = out.select(
        "r",
        "call_index",
        names.gather(out.get_column("m")).alias("module"),
        invocation_index="p",
        attempt="attempt",
        reason=pl.col("reason").cast(pl.String),
    )
    quiet = silent.select("r", reason=pl.lit("no_calls"))
    rows = pl.concat([called, quiet], how="diagonal").sort("r", "call_index")
    return rows.select(ids.gather(rows.get_column("r")).alias("rollout_id"), pl.exclude("r"))


def _summary(chunk: Chunk, calls: pl.DataFrame, groups: pl.DataFrame, scored: pl.DataFrame) -> pl.DataFrame:
    rows = []
    places = calls.select("m", "p").unique().sort("m", "p")
    for m, p in places.iter_rows():
        here = (pl.col("m") == m) & (pl.col("p") == p)
        mine = groups.filter((pl.col("module") == chunk.modules[m]) & (pl.col("invocation_index") == p))
        spread = mine.group_by("group_id").agg(pl.col("reward").max() - pl.col("reward").min()).get_column("reward")
        why = calls.filter(here & pl.col("reason").is_not_null()).group_by(pl.col("reason").cast(pl.String)).len()
        kinds = mine.get_column("copy_kind")
        rows.append(
            {
                "module": chunk.modules[m],
                "invocation_index": p,
                "invocations": calls.filter(here).height,
                "groups": mine.get_column("group_id").n_unique(),
                "flat_groups": scored.filter(here & pl.col("flat")).get_column("group").n_unique(),
                "small_groups": 0,
                "members": mine.height,
                "copies_fill": int((kinds == "fill").sum()),
                "copies_select": int((kinds == "select").sum()),
                "reward_mean": mine.get_column("reward").mean(),
                "reward_min": mine.get_column("reward").min(),
                "reward_max": mine.get_column("reward").max(),
                "spread_mean": spread.mean(),
                "weighted_advantage": float((mine.get_column("weight") * mine.get_column("advantage")).abs().sum()),
                "excluded": canonical_json(dict(why.iter_rows())),
            }
        )
    return pl.DataFrame(rows, schema=_summary_schema())


def _summary_schema() -> dict[str, pl.DataType]:
    from schemas.groups import SUMMARY

    empty = pl.from_arrow(SUMMARY.schema.empty_table())
    assert isinstance(empty, pl.DataFrame)
    return dict(empty.schema)
