"""PadGroups (mmGRPO, arXiv 2508.04660): groups of rollouts that call a module different numbers of times.

A *set* is one example's calls of one module (and of one value of the recipe's key columns); a *lane* is one rollout's
part of it. `reach` is the last position that a lane came to, counted over what the rollout did, usable or not. A
lane without a usable call has no part in its set, and does not delete the set's groups for the others.

- `truncate`: positions up to the shortest reach of the set.
- `fill`, `fill_last`: beyond its reach, a lane is present with a copy of one of its own usable calls: drawn with
  replacement from a seed of (seed, rollout, module, position), or the last one that was made. Only positions that
  hold an original are filled, and earlier attempts are never copied. Rollouts that stop early weigh more by this.
- `ragged`: what there is.

`strict` is the rule of other implementations: a set is left out when any rollout of the example has no lane in it.
Rollouts that are left out as a whole (stale, capped, without a reward) do not count there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stages.grouping.hashing import U64, fold, fold_strings, start
from stages.grouping.load import Chunk
from stages.grouping.reasons import reason
from stages.grouping.rules import Rules
from stages.grouping.runs import Bools, Ints, compact, greatest_by, runs_of

ORIGINAL, FILL, SELECT = 0, 1, 2
"""Codes of `copy`, in the order of schemas.groups.COPY_KINDS."""

MEMBER = ("row", "r", "kind", "p", "q", "early", "copy")
"""Columns of candidate members: source call, rollout, rank of (module, key), position, reward, attempt?, copy."""


def pad(chunk: Chunk, calls: pl.DataFrame, rollouts: pl.DataFrame, rules: Rules) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Turn judged calls into candidate members.

    Args:
        chunk: what was loaded.
        calls: judged calls.
        rollouts: the chunk's rollouts, with `out` where they are left out as a whole.
        rules: the recipe's rules.

    Returns:
        (members, calls): members in no order, with the columns `MEMBER`; calls with the reasons of this step.
    """
    group = rules.group
    kind = calls.get_column("m").cast(pl.Int64) * len(chunk.keys) + calls.get_column("key")
    calls = calls.with_columns(kind.alias("kind"))
    lanes = _lanes(chunk, calls)
    sets = lanes.set[lanes.of]
    if group.strict:
        calls = _leave_out(calls, ~_whole(chunk, lanes, rollouts)[sets], "strict")
        lanes = _lanes(chunk, calls)
    if group.pad == "truncate":
        calls = _leave_out(calls, calls.get_column("p").to_numpy() > _shortest(lanes)[sets], "position_truncated")
    usable = calls.filter(pl.col("reason").is_null())
    members = usable.with_columns(copy=pl.lit(ORIGINAL, dtype=pl.UInt8)).select(MEMBER)
    if group.pad in ("fill", "fill_last"):
        members = pl.concat([members, _copies(chunk, members, lanes, rules)])
    return members, calls


def _leave_out(calls: pl.DataFrame, lost: Bools, why: str) -> pl.DataFrame:
    """Give a reason to the calls that have none yet."""
    chosen = pl.when(pl.col("reason").is_null() & pl.lit(pl.Series(lost))).then(reason(why)).otherwise("reason")
    return calls.with_columns(reason=chosen)


@dataclass(frozen=True)
class Lanes:
    """What every rollout did in every set of its example.

    Attributes:
        of: the lane of every call.
        rollout, kind, set: of every lane.
        sets: how many sets there are.
        reach: last position that a lane came to; -1 where the module was not called.
        usable: its usable final attempts.
        top: its last usable position; -1 where there is none.
        live: lanes that have a part in their set, in order.
    """

    of: Ints
    rollout: Ints
    kind: Ints
    set: Ints
    sets: int
    reach: Ints
    usable: Ints
    top: Ints
    live: Ints


def _lanes(chunk: Chunk, calls: pl.DataFrame) -> Lanes:
    kinds, rollouts = chunk.kinds, chunk.rollouts.height
    of, names = compact(
        (calls.get_column("r").cast(pl.Int64) * kinds + calls.get_column("kind")).to_numpy(), rollouts * kinds
    )
    rollout, kind = names // max(kinds, 1), names % max(kinds, 1)
    example = chunk.rollouts.get_column("e").to_numpy().astype(np.int64)
    set_, sets = compact(example[rollout] * kinds + kind, kinds * (int(example.max(initial=-1)) + 1))
    final, sound = (
        calls.select(flag).to_series().to_numpy() for flag in ("final", pl.col("final") & pl.col("reason").is_null())
    )
    p, size = calls.get_column("p").to_numpy(), len(names)
    reach, top = greatest_by(of[final], p[final], size), greatest_by(of[sound], p[sound], size)
    usable = np.bincount(of[sound], minlength=size)
    return Lanes(of, rollout, kind, set_, len(sets), reach, usable, top, np.flatnonzero(usable))


def _whole(chunk: Chunk, lanes: Lanes, rollouts: pl.DataFrame) -> Bools:
    """Per set, whether every rollout of the example that counts has a part in it."""
    example = chunk.rollouts.get_column("e").to_numpy()
    wanted = np.bincount(example[rollouts.get_column("out").is_null().to_numpy()], minlength=len(example))
    of_set = np.zeros(lanes.sets, dtype=np.int64)
    of_set[lanes.set] = wanted[example[lanes.rollout]]
    found: Bools = np.bincount(lanes.set[lanes.live], minlength=lanes.sets) == of_set
    return found


def _shortest(lanes: Lanes) -> Ints:
    """Per set, the shortest reach of its lanes."""
    ends = np.full(lanes.sets, np.iinfo(np.int64).max)
    np.minimum.at(ends, lanes.set[lanes.live], lanes.reach[lanes.live])
    return ends


def _copies(chunk: Chunk, members: pl.DataFrame, lanes: Lanes, rules: Rules) -> pl.DataFrame:
    """The copies that fill lanes up to the last usable position of their set."""
    live = lanes.live
    end = greatest_by(lanes.set[live], lanes.top[live], lanes.sets)
    short = live[lanes.reach[live] < end[lanes.set[live]]]
    spans = runs_of(end[lanes.set[short]] - lanes.reach[short])
    lane = short[spans.of]
    p = lanes.reach[lane] + 1 + np.arange(len(lane)) - spans.starts[spans.of]
    if (lanes.usable[live] != lanes.reach[live] + 1).any():
        real = _with_original(lanes, members, lane, p)
        lane, p = lane[real], p[real]
    size = lanes.usable[lane]
    last = rules.group.pad == "fill_last"
    pick = size - 1 if last else (_draws(chunk, lanes, lane, p, rules.seed) % size.astype(np.uint64)).astype(np.int64)
    source = _nth_call(members, lanes, short, lane, pick)
    return members[source].with_columns(pl.Series("p", p.astype(np.int32)), copy=pl.lit(FILL, dtype=pl.UInt8))


def _nth_call(members: pl.DataFrame, lanes: Lanes, short: Ints, lane: Ints, pick: Ints) -> Ints:
    """The row in `members` of a lane's n-th usable call, in order of calls."""
    wanted = np.zeros(len(lanes.usable), dtype=bool)
    wanted[short] = True
    of = lanes.of[members.get_column("row").to_numpy()]
    own = np.flatnonzero(wanted[of] & ~members.get_column("early").to_numpy())
    own = own[np.argsort(of[own], kind="stable")]
    starts = np.zeros(len(lanes.usable), dtype=np.int64)
    starts[short] = np.cumsum(lanes.usable[short]) - lanes.usable[short]
    found: Ints = own[starts[lane] + pick]
    return found


def _with_original(lanes: Lanes, members: pl.DataFrame, lane: Ints, p: Ints) -> Bools:
    """Whether some lane of the set has a usable call at the position."""
    finals = members.filter(~pl.col("early"))
    size = 1 + max(int(p.max(initial=0)), int(lanes.top.max(initial=0)))
    sets = lanes.set[lanes.of[finals.get_column("row").to_numpy()]]
    return np.isin(lanes.set[lane] * size + p, sets * size + finals.get_column("p").to_numpy())


def _draws(chunk: Chunk, lanes: Lanes, lane: Ints, p: Ints, seed: int) -> U64:
    """One 64-bit draw per hole, a function of (seed, rollout_id, module name, position)."""
    names = fold_strings(start(0, len(chunk.modules)), pl.Series(chunk.modules, dtype=pl.String))
    rollouts, which = np.unique(lanes.rollout[lane], return_inverse=True)
    ids = chunk.rollouts.get_column("rollout_id").gather(rollouts)
    state = fold_strings(start(seed, len(rollouts)), ids)[which]
    return fold(fold(state, names[lanes.kind[lane] // len(chunk.keys)]), p)
