"""The same job by other means: DuckDB, pandas, and a plain Python loop.

Mode: the paper's, with `fill_last` instead of `fill` (whose draws only this project makes): K = 12 by greatest
variance, flat groups dropped, format rewards, the first failed attempt. Each reads the same Parquet files and writes
groups and excluded rows as Parquet; ids of groups are theirs. Written as someone would who knows the tool, and no
further than the made-up tables need: no group there has more than K members.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

K = 12
EPS = 1e-4
SUFFIX = " (FORMAT parquet, COMPRESSION zstd)"


def duckdb(folder: Path, out: Path) -> None:
    """One SQL script (group_duckdb.sql), on integers and enums in place of text."""
    import duckdb as duck

    script = Path(__file__).with_name("group_duckdb.sql").read_text()
    con = duck.connect()
    con.execute(script.format(folder=folder, out=out, k=K))
    con.close()


CALLS = [
    "rollout_id", "call_index", "module", "invocation_index", "attempt", "lm", "finish_reason", "parse_status",
    "parsed_share", "trainable", "concurrent",
]  # fmt: skip
ROLLOUTS = ["example_id", "rollout_index", "rollout_id", "source", "policy", "reward", "status"]
NAMES = [
    "group_id", "member_index", "example_id", "module", "invocation_index", "rollout_id", "call_index", "attempt",
    "copy_kind", "source", "policy", "reward", "advantage", "weight",
]  # fmt: skip


def pandas(folder: Path, out: Path) -> None:
    """Groupby and transform on integer codes; one look-up of rollouts; strings only in the output."""
    import numpy as np
    import pandas as pd

    rollouts = pd.read_parquet(folder / "rollouts.parquet", columns=ROLLOUTS)
    calls = pd.read_parquet(folder / "invocations.parquet", columns=CALLS)
    r = pd.Index(rollouts.rollout_id).get_indexer(calls.rollout_id)
    e = pd.factorize(rollouts.example_id, sort=True)[0][r]
    m, modules = pd.factorize(calls.module, sort=True)
    p, attempt = calls.invocation_index.to_numpy().astype("int64"), calls.attempt.to_numpy()
    failed, ok = (calls.parse_status == "failed").to_numpy(), (rollouts.status == "ok").to_numpy()[r]
    reward = rollouts.reward.to_numpy()[r]
    q = np.where(ok & (calls.finish_reason != "length").to_numpy(), np.nan_to_num(reward) * 1e6, 0.0)
    q = np.round(np.where(failed, 1e6 * (calls.parsed_share.fillna(0).to_numpy() - 1), q)).astype("int64")
    usable = (calls.trainable & (calls.lm == "student") & ~calls.concurrent).to_numpy() & ~(ok & np.isnan(reward))
    usable &= (calls.finish_reason != "context_overflow").to_numpy()
    width, kinds = int(p.max()) + 1, len(modules)
    place = pd.Series((r * kinds + m) * width + p)
    last = pd.Series(attempt).groupby(place, sort=False).transform("max").to_numpy()
    tries = pd.Series(np.where(failed, attempt, np.iinfo("int32").max))
    first = tries.groupby(place, sort=False).transform("min").to_numpy()
    final, early = attempt == last, (attempt < last) & failed & (attempt == first)
    index = rollouts.rollout_index.to_numpy()[r]
    table = pd.DataFrame(
        {"row": np.arange(len(calls)), "r": r, "lane": r * kinds + m, "p": p, "q": q, "i": index, "early": early}
    )
    table["set"] = e * kinds + m
    marked = table[usable & (final | early)].assign(copy=0)
    lanes = (
        marked[~marked.early]
        .groupby("lane", sort=False)
        .agg(reach=("p", "max"), row=("row", "max"), set=("set", "first"))
    )
    lanes["top"] = lanes.groupby("set", sort=False).reach.transform("max")
    lanes = lanes[lanes.reach < lanes.top]
    repeats = (lanes.top - lanes.reach).to_numpy()
    fills = table.iloc[np.repeat(lanes.row.to_numpy(), repeats)].assign(copy=1)
    steps = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    fills["p"] = np.repeat(lanes.reach.to_numpy(), repeats) + 1 + steps
    members = pd.concat([marked, fills], ignore_index=True)
    members["g"] = members.set * width + members.p
    members = members.sort_values(["g", "i", "early"], ignore_index=True)
    stats = members[~members.early].groupby("g", sort=False).q.agg(["count", "min", "max", "sum"])
    stats.columns = ["n", "low", "high", "total"]
    stats = stats[stats.n >= 2]
    span, extra = stats.high - stats.low, (K - stats.n).clip(lower=0)
    best = np.floor(((K + 1) * span - 2 * (stats.total - stats.n * stats.low)) / (2.0 * span.where(span > 0, 1)))
    stats["top"] = np.where(span == 0, extra, best.clip(lower=0).clip(upper=extra)).astype("int64")
    stats["extra"] = extra
    members = members.merge(stats, left_on="g", right_index=True, how="inner")
    members["times"] = 1
    for end, count in (("high", members.top), ("low", members.extra - members.top)):
        at_end = (members.q == members[end]) & ~members.early
        some = (at_end & (members["copy"] == 0)).groupby(members.g, sort=False).transform("any")
        pool = (at_end & ((members["copy"] == 0) | ~some)).astype("int64")
        by = pool.groupby(members.g, sort=False)
        size = by.transform("sum").where(pool == 1, 1)
        members["times"] += np.where(pool == 1, ((count - by.cumsum() + size) // size).clip(lower=0), 0)
    weight = members.times.where(~members.early, 0)
    d = members.q - members.low
    sums = pd.DataFrame({"w": weight, "wd": weight * d, "wdd": weight * d * d}).groupby(members.g, sort=False).sum()
    std = np.sqrt((sums.w * sums.wdd - sums.wd**2) / (sums.w * (sums.w - 1))) + 1e6 * EPS
    of = sums.index.get_indexer(members.g)
    n, s1 = sums.w.to_numpy()[of], sums.wd.to_numpy()[of]
    members["advantage"] = (n * d - s1) / n / std.to_numpy()[of]
    members["mixed"] = members.high > members.low
    kept = members[members.mixed]
    at = np.repeat(np.arange(len(kept)), kept.times)
    rows = kept.iloc[at]
    again = np.diff(at, prepend=-1) == 0
    source, of_row = rows.row.to_numpy(), rows.r.to_numpy()
    columns = {
        "group_id": rows.g.astype(str),
        "member_index": rows.groupby("g", sort=False).cumcount().astype("int32"),
        "example_id": rollouts.example_id.to_numpy()[of_row],
        "module": modules.to_numpy()[rows.set % kinds],
        "invocation_index": rows.p.astype("int32"),
        "rollout_id": rollouts.rollout_id.to_numpy()[of_row],
        "call_index": calls.call_index.to_numpy()[source],
        "attempt": attempt[source],
        "copy_kind": np.where(again, "select", np.where(rows["copy"] == 1, "fill", "none")),
        "source": rollouts.source.to_numpy()[of_row],
        "policy": rollouts.policy.to_numpy()[of_row],
        "reward": rows.q / 1e6,
        "advantage": rows.advantage,
        "weight": 1.0,
    }
    pd.DataFrame(columns).to_parquet(out / "groups.parquet", compression="zstd", index=False)
    gone = np.ones(len(calls), dtype=bool)
    gone[source] = False
    flat = np.full(len(calls), "small_group", dtype=object)
    flat[members.row[(members["copy"] == 0) & ~members.mixed]] = "flat_group"
    reason = np.where(usable, np.where(final | early, flat, "earlier_attempt"), "unusable")[gone]
    left = calls.loc[gone, ["rollout_id", "call_index", "module", "invocation_index", "attempt"]]
    left.assign(reason=reason).to_parquet(out / "excluded.parquet", compression="zstd", index=False)


def loop(folder: Path, out: Path) -> None:
    """Dictionaries and lists, one row after the other."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rollouts = {
        row["rollout_id"]: row for row in pq.read_table(folder / "rollouts.parquet", columns=ROLLOUTS).to_pylist()
    }
    places: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    calls = pq.read_table(folder / "invocations.parquet", columns=CALLS).to_pylist()
    for c in calls:
        places[c["rollout_id"], c["module"], c["invocation_index"]].append(c)
    lanes: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    groups: dict[tuple[str, str, int], list[tuple[int, bool, int, dict[str, Any], int]]] = defaultdict(list)
    excluded: dict[tuple[str, int], str] = {}
    for (rollout_id, module, p), tries in places.items():
        r = rollouts[rollout_id]
        example, index = r["example_id"], r["rollout_index"]
        last = max(c["attempt"] for c in tries)
        failed = [c["attempt"] for c in tries if c["parse_status"] == "failed" and c["attempt"] < last]
        for c in tries:
            q = _worth(c, r)
            usable = c["trainable"] and c["lm"] == "student" and not c["concurrent"] and q is not None
            if not usable or c["finish_reason"] == "context_overflow":
                excluded[rollout_id, c["call_index"]] = "unusable"
            elif c["attempt"] == last:
                lanes[example, module][rollout_id].append(c)
                groups[example, module, p].append((index, False, 0, c, q))
            elif failed and c["attempt"] == min(failed):
                groups[example, module, p].append((index, True, 0, c, q))
            else:
                excluded[rollout_id, c["call_index"]] = "earlier_attempt"
    for (example, module), of in lanes.items():
        top = max(c["invocation_index"] for own in of.values() for c in own)
        for rollout_id, own in of.items():
            reach, r = max(c["invocation_index"] for c in own), rollouts[rollout_id]
            final = max(own, key=lambda c: c["call_index"])
            for p in range(reach + 1, top + 1):
                groups[example, module, p].append((r["rollout_index"], False, 1, final, _worth(final, r)))
    columns: dict[str, list[Any]] = {name: [] for name in NAMES}
    used: set[tuple[str, int]] = set()
    for number, place in enumerate(sorted(groups)):
        members = sorted(groups[place], key=lambda m: (m[0], m[1]))
        counted = [m for m in members if not m[1]]
        rewards = [m[4] for m in counted]
        if len(counted) < 2 or min(rewards) == max(rewards):
            why = "small_group" if len(counted) < 2 else "flat_group"
            for m in members:
                excluded.setdefault((m[3]["rollout_id"], m[3]["call_index"]), why)
            continue
        times = _times(counted, rewards)
        weighted = [(times[id(m)], m[4] - min(rewards)) for m in counted]
        n, s1 = sum(w for w, _ in weighted), sum(w * d for w, d in weighted)
        s2 = sum(w * d * d for w, d in weighted)
        scale = math.sqrt((n * s2 - s1 * s1) / (n * (n - 1))) + 1e6 * EPS
        at = 0
        for m in members:
            c, r = m[3], rollouts[m[3]["rollout_id"]]
            used.add((c["rollout_id"], c["call_index"]))
            for turn in range(times.get(id(m), 1)):
                kind = "select" if turn else "fill" if m[2] else "none"
                advantage = (n * (m[4] - min(rewards)) - s1) / n / scale
                row = (
                    str(number), at, place[0], place[1], place[2], c["rollout_id"], c["call_index"], c["attempt"], kind,
                    r["source"], r["policy"], m[4] / 1e6, advantage, 1.0,
                )  # fmt: skip
                for name, value in zip(NAMES, row, strict=True):
                    columns[name].append(value)
                at += 1
    pq.write_table(pa.table(columns), out / "groups.parquet", compression="zstd")
    left = [
        (
            c["rollout_id"],
            c["call_index"],
            c["module"],
            c["invocation_index"],
            c["attempt"],
            excluded.get((c["rollout_id"], c["call_index"])),
        )
        for c in calls
        if (c["rollout_id"], c["call_index"]) not in used
    ]
    names = ("rollout_id", "call_index", "module", "invocation_index", "attempt", "reason")
    table = {name: [row[at] for row in left] for at, name in enumerate(names)}
    pq.write_table(pa.table(table), out / "excluded.parquet", compression="zstd")


def _worth(c: dict[str, Any], r: dict[str, Any]) -> int | None:
    if c["parse_status"] == "failed":
        return round(1e6 * (-1 + (c["parsed_share"] or 0)))
    if c["finish_reason"] == "length" or r["status"] != "ok":
        return 0
    return None if r["reward"] is None else round(1e6 * r["reward"])


def _times(counted: list[tuple[int, bool, int, dict[str, Any], int]], rewards: list[int]) -> dict[int, int]:
    low, high, extra = min(rewards), max(rewards), K - len(rewards)
    times = {id(m): 1 for m in counted}
    if extra <= 0:
        return times
    shifted = sum(value - low for value in rewards)
    top = min(max(((K + 1) * (high - low) - 2 * shifted) // (2 * (high - low)), 0), extra)
    for value, count in ((high, top), (low, extra - top)):
        ends = [m for m in counted if m[4] == value]
        ends = [m for m in ends if m[2] == 0] or ends
        for turn in range(count):
            times[id(ends[turn % len(ends)])] += 1
    return times
