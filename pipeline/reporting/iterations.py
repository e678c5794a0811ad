"""What each iteration did: its rollouts, its groups, its training."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from pipeline.jobs import stage_of
from pipeline.lineage import grouped_from
from pipeline.reporting.data import GroupStats, Iteration, ModuleReward, RolloutStats
from pipeline.reporting.opened import ITERATED, OpenRun, frame
from schemas.groups import EXCLUDED, GROUPS
from schemas.recipe_data import GroupSection
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from stages.contract import Artifact
from stages.grouping.reasons import REASONS

FLAT = "flat_group"
"""The reason under which the group stage leaves out members of flat groups."""
assert FLAT in REASONS


def collect_iterations(run: OpenRun) -> tuple[Iteration, ...]:
    """Every iteration of the run, stages that are not finished left None."""
    return tuple(_iteration(run, index) for index in range(len(run.state.iterations)))


def _iteration(run: OpenRun, index: int) -> Iteration:
    rollout, group, train = (run.stage(index, stage) for stage in ITERATED)
    found = dict(zip(ITERATED, (rollout, group, train), strict=True))
    metrics = train.manifest.metrics if train else {}
    reason = metrics.get("reason") or metrics.get("ended_early")
    return Iteration(
        index=index,
        missing=tuple(stage for stage, artifact in found.items() if artifact is None),
        rollouts=_rollout_stats(rollout) if rollout else None,
        groups=_group_stats(group, _grouped_from(run, index), run.recipe.group) if group else None,
        trained=bool(metrics.get("trained")) if train else None,
        train_note=None if reason is None else str(reason),
        objective=metrics.get("objective"),
        likelihood_members=int(metrics.get("likelihood_members", 0)),
        rows=int(metrics.get("rows", 0)),
        narrowed_rows=int(metrics.get("narrowed_rows", 0)),
    )


def _rollout_stats(artifact: Artifact) -> RolloutStats:
    table = frame(artifact, ROLLOUTS, ["example_id", "reward", "status", "source"])
    rewards = table["reward"].drop_nulls()
    mean = rewards.mean()
    return RolloutStats(
        rollouts=len(table),
        examples=table["example_id"].n_unique(),
        rewarded=len(rewards),
        mean_reward=mean if isinstance(mean, float) else None,
        statuses=_counts(table["status"]),
        sources=_counts(table["source"]),
    )


def _grouped_from(run: OpenRun, index: int) -> tuple[Artifact, ...]:
    others = [
        artifact
        for before in range(index + 1)
        for name in sorted(run.state.iterations[before])
        if ((name == "rollout" and before < index) or stage_of(name) == "teacher")
        and (artifact := run.stage(before, name))
    ]
    logged = run.store.find("ingest", run.state.setup.get("ingest", ""))
    others = [logged, *others] if logged else others
    return grouped_from(run.stage(index, "group"), run.stage(index, "rollout"), others)


def _group_stats(artifact: Artifact, rollouts: Sequence[Artifact], rules: GroupSection) -> GroupStats:
    columns = ["group_id", "rollout_id", "call_index", "module", "reward", "copy_kind", "weight", "advantage"]
    rows = frame(artifact, GROUPS, columns)
    pull = rows.group_by("module").agg((pl.col("weight") * pl.col("advantage")).abs().sum().round(6))
    members = rows
    if rules.unit == "trajectory":  # a row a call: the first one stands for the member
        members = rows.filter(pl.col("call_index") == pl.col("call_index").min().over("group_id", "rollout_id"))
    groups = members.group_by("group_id").agg(
        pl.len().alias("size"),
        ((pl.col("reward").max() - pl.col("reward").min()) <= rules.min_spread).alias("flat"),
    )
    copies = members.filter(pl.col("copy_kind") != "none")["copy_kind"]
    return GroupStats(
        groups=len(groups),
        members=len(members),
        copies=_counts(copies),
        sizes={int(size): count for size, count in sorted(_value_counts(groups["size"]).items())},
        flat_kept=int(groups["flat"].sum()),
        flat_dropped=_flat_dropped(artifact, rollouts, rules),
        modules=_counts(rows.select("group_id", "module").unique()["module"]),
        pull=dict(sorted(pull.iter_rows())),
        outsized=outsized(rows) if rules.scale == "group_std" else None,
    )


def outsized(rows: pl.DataFrame) -> float | None:
    """See `GroupStats`. Of n values, none is further than sqrt(n) deviations from their mean; eps only lessens that."""
    pull, large = pl.col("weight") * pl.col("advantage").abs(), pl.col("advantage").abs() > pl.col("size").sqrt()
    sized = rows.with_columns(size=pl.len().over("group_id"))
    every, beyond = sized.select(every=pull.sum(), beyond=pull.filter(large).sum()).row(0)
    return beyond / every if every else None


def _flat_dropped(artifact: Artifact, rollouts: Sequence[Artifact], rules: GroupSection) -> int:
    """Groups left out as flat: what is distinct of what a group shares, among the rows excluded for that."""
    if not rollouts:
        return 0
    rows = frame(artifact, EXCLUDED, ["rollout_id", "module", "invocation_index", "reason"])
    flat = rows.filter(pl.col("reason") == FLAT)
    examples = pl.concat([frame(rollout, ROLLOUTS, ["rollout_id", "example_id"]) for rollout in rollouts])
    shared = ["example_id"] if rules.unit == "trajectory" else ["example_id", "module", "invocation_index"]
    return flat.join(examples, on="rollout_id").select(shared).n_unique()


def collect_module_rewards(run: OpenRun) -> tuple[ModuleReward, ...]:
    """Mean reward of the rollouts that reached each call of each trained module, per iteration."""
    return tuple(
        row
        for index in range(len(run.state.iterations))
        if (artifact := run.stage(index, "rollout")) is not None
        for row in _module_rewards(artifact, index)
    )


def _module_rewards(artifact: Artifact, iteration: int) -> list[ModuleReward]:
    columns = ["rollout_id", "module", "invocation_index", "attempt", "parse_status", "trainable"]
    calls = frame(artifact, INVOCATIONS, columns).filter("trainable")
    rewards = frame(artifact, ROLLOUTS, ["rollout_id", "reward"])
    attempts = calls.sort("attempt").group_by("rollout_id", "module", "invocation_index")
    calls = attempts.agg(first=pl.col("parse_status").first(), last=pl.col("parse_status").last())
    stats = (
        calls.join(rewards, on="rollout_id")
        .sort("rollout_id")
        .group_by("module", "invocation_index")
        .agg(
            pl.len().alias("rollouts"),
            pl.col("reward").mean().alias("mean_reward"),
            pl.col("reward").null_count().alias("without_reward"),
            (pl.col("first") == "failed").sum().alias("first_failed"),
            (pl.col("last") == "failed").sum().alias("parse_failed"),
        )
        .sort("module", "invocation_index")
    )
    return [ModuleReward(iteration=iteration, **row) for row in stats.iter_rows(named=True)]


def _counts(values: pl.Series) -> dict[str, int]:
    return {str(value): count for value, count in sorted(_value_counts(values).items())}


def _value_counts(values: pl.Series) -> dict[str | int, int]:
    counted = values.value_counts(name="n")
    return dict(zip(counted[values.name].to_list(), counted["n"].to_list(), strict=True))
