"""One chunk of whole examples: from loaded rows to members with advantages, and an account of every row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from stages.grouping import trajectory
from stages.grouping.advantage import ModuleMoments, advantages, module_moments, std
from stages.grouping.balance import group_weights, token_weights
from stages.grouping.baseline import baselines, example_baselines
from stages.grouping.fates import fates
from stages.grouping.groups import Members, arrange, figures
from stages.grouping.load import Chunk
from stages.grouping.pad import SELECT, pad
from stages.grouping.rewards import MICRO, judge, parts_seen, score_rollouts
from stages.grouping.rules import Rules
from stages.grouping.runs import Ints
from stages.grouping.select import select
from stages.grouping.sources import check_policies, source_reasons


@dataclass(frozen=True)
class Grouped:
    """A chunk after selection.

    Attributes:
        chunk: what the codes of members mean (for trajectories, a chunk of one module `*`).
        calls: judged calls with their reasons so far.
        members: candidates; `groups` has every figure of the baseline but the module's deviation.
        times: how often each candidate stands in its group.
        counted: how often each counts in the baseline.
        teacher: per candidate whether a teacher made it; None where no teacher took part.
        parts: rollouts that ended ok, and the reward parts that they have (see `rewards.parts_seen`).
    """

    chunk: Chunk
    calls: pl.DataFrame
    members: Members
    times: Ints
    counted: Ints
    teacher: pl.Series | None
    parts: tuple[int, frozenset[str]]


def select_members(chunk: Chunk, ages: pl.DataFrame, rules: Rules) -> Grouped:
    """Rewards, exclusions, PadGroups, selection and the exact sums that advantages need.

    Args:
        chunk: whole examples.
        ages: see `sources.policy_ages`.
        rules: the recipe's rules.
    """
    check_policies(chunk.rollouts, ages, rules.group)
    rollouts = source_reasons(score_rollouts(chunk.rollouts, rules.group), ages, rules)
    calls, rollouts = judge(chunk, rollouts, rules)
    if rules.trajectory:
        chunk, rows, calls = trajectory.as_members(chunk, calls, rollouts, rules)
    else:
        rows, calls = pad(chunk, calls, rollouts, rules)
    members = arrange(chunk, rows)
    teacher = rollouts.get_column("teacher")
    teacher_rows = teacher.gather(members.rows.get_column("r")) if teacher.any() else None
    members = members.with_groups(figures(members, teacher_rows))
    members = members.with_groups(members.groups.select(small=pl.col("rollouts") < rules.group.min_group))
    times = select(chunk, members, rules)
    members, counted = baselines(members, times, teacher_rows, rules)
    if rules.group.small_groups == "example_baseline" and not rules.trajectory:
        members, counted = example_baselines(chunk, rollouts, members, counted, rules)
    return Grouped(chunk, calls, members, times, counted, teacher_rows, parts_seen(rollouts, rules.group))


def sums_by_module(grouped: Grouped) -> dict[str, ModuleMoments]:
    """What this chunk adds to the deviation of each module over the whole table."""
    chunk = grouped.chunk
    return module_moments(grouped.members, len(chunk.keys), chunk.modules)


@dataclass(frozen=True)
class Result:
    """What a chunk comes to.

    Attributes:
        chunk: as it was loaded: what the codes of calls mean.
        grouped: the chunk after selection; its groups have `small`, `flat`, `out` (not written) and `weight`.
        calls: every call with its final `reason`; null for the sources of members.
        advantage: of every candidate.
        rows: one row per member written, in order: `row`, `r`, `q`, `copy`, `gid`, `advantage`, `weight`.
    """

    chunk: Chunk
    grouped: Grouped
    calls: pl.DataFrame
    advantage: pl.Series
    rows: pl.DataFrame


def finish(chunk: Chunk, grouped: Grouped, modules: dict[str, ModuleMoments], rules: Rules) -> Result:
    """Advantages, weights, and the reason of every call that is in no group.

    Args:
        chunk: the chunk as it was loaded.
        grouped: the same after selection.
        modules: moments of each module over the whole table; `scale = "module_std"` alone needs them.
        rules: the recipe's rules.
    """
    members = grouped.members.with_groups(_scales(grouped, modules, rules))
    out = pl.col("small") | (pl.col("flat") & (rules.group.flat == "drop"))
    weights = group_weights(members.groups, len(grouped.chunk.keys), rules.balance)
    members = members.with_groups(members.groups.select(out=out).with_columns(weights))
    advantage = advantages(members, grouped.counted, grouped.teacher, rules)
    rows = _expand(members, advantage, grouped.times)
    calls = fates(grouped.calls, members, grouped.times, rows, by="r" if rules.trajectory else "row")
    if rules.trajectory:
        rows = trajectory.calls_of(rows, grouped.calls)
        rows = rows.with_columns(token_weights(rows, rules.balance)).drop("tokens")
    return Result(chunk, replace(grouped, members=members), calls, advantage, rows)


def _scales(grouped: Grouped, modules: dict[str, ModuleMoments], rules: Rules) -> pl.DataFrame:
    """`scale` and `teacher_scale` in millionths, with eps, and `flat`, per group."""
    group = rules.group
    groups, eps = grouped.members.groups, group.eps * MICRO
    if group.scale == "none":
        scale = pl.lit(float(MICRO))
    elif group.scale == "module_std":
        deviations = [modules.get(name, ModuleMoments()).std(group.ddof) for name in grouped.chunk.modules]
        of = pl.Series(deviations, dtype=pl.Float64).gather(groups.get_column("kind") // len(grouped.chunk.keys))
        scale = pl.lit(of) + eps
    else:
        scale = std(pl.col("sn"), pl.col("s1"), pl.col("s2"), group.ddof) + eps
    flat = pl.col("range") <= round(group.min_spread * MICRO)
    every = std(pl.col("tn"), pl.col("t1"), pl.col("t2"), group.ddof) + eps
    teacher = scale if group.scale == "none" else pl.max_horizontal(scale, every)
    return groups.select(scale=scale, teacher_scale=teacher, flat=(flat & ~pl.col("small")).fill_null(False))


def _expand(members: Members, advantage: pl.Series, times: Ints) -> pl.DataFrame:
    """The rows of groups that are written, as often as they stand there; all but a row's first are `select` copies."""
    kept = np.where(members.spread("out").to_numpy(), 0, times)
    at = np.repeat(np.arange(len(kept), dtype=np.int32), kept)
    again = np.flatnonzero(at[1:] == at[:-1]) + 1
    sizes = members.runs.sum(pl.Series(kept)).to_numpy()
    rows = members.rows.select("row", "r", "q", "copy").with_columns(advantage.alias("advantage"))[at]
    copy = rows.get_column("copy").to_numpy().copy()
    copy[again] = SELECT
    gid = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    weight = np.repeat(members.groups.get_column("weight").to_numpy(), sizes)
    return rows.with_columns(pl.Series("copy", copy), pl.Series("gid", gid), pl.Series("weight", weight))
