"""lineage: which rollouts trained an adapter, and what came of a rollout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from pipeline import runfile
from pipeline.runfile import RunFile
from pipeline.store import Store
from schemas.errors import RecipeError
from schemas.groups import EXCLUDED, GROUPS
from schemas.parquet import read_frame
from schemas.rollouts import ROLLOUTS
from stages.contract import Artifact


@dataclass(frozen=True)
class Iteration:
    """The artifacts of one iteration, as far as they exist, and the policies before and after it."""

    index: int
    rollout: Artifact | None
    group: Artifact | None
    train: Artifact | None
    before: str
    after: str | None


def iterations(folder: Path) -> list[Iteration]:
    """The iterations of a run, by run.json."""
    run = runfile.read_run(folder)
    store = Store(folder / "artifacts")
    return list(_iterations(run, store))


def _iterations(run: RunFile, store: Store) -> Iterator[Iteration]:
    for index, stages in enumerate(run.iterations):
        parts = {stage: store.open(stage, key) for stage, key in stages.items()}
        after = run.policies[index + 1] if index + 1 < len(run.policies) else None
        yield Iteration(index, parts.get("rollout"), parts.get("group"), parts.get("train"), run.policies[index], after)


def chain(folder: Path) -> list[dict[str, Any]]:
    """Per iteration: policy, artifact digests, and how many rollouts and members went into the next policy."""
    rows: list[dict[str, Any]] = []
    for item in iterations(folder):
        row: dict[str, Any] = {"iteration": item.index, "policy": item.before}
        for name, artifact in (("rollout", item.rollout), ("group", item.group), ("train", item.train)):
            row[name] = artifact.digest if artifact else None
        row["next_policy"] = item.after
        row["adapter"] = _adapter(folder, item)
        row["rollouts"] = item.rollout.manifest.files["rollouts.parquet"].rows if item.rollout else None
        row["members"] = item.group.manifest.files["groups.parquet"].rows if item.group else None
        rows.append(row)
    return rows


def newest_adapter(folder: Path) -> Path | None:
    """The adapter of the newest policy: a PEFT folder. None where nothing is trained yet."""
    paths = [path for item in iterations(folder) if (path := _adapter(folder, item))]
    return folder / paths[-1] if paths else None


def _adapter(folder: Path, item: Iteration) -> str | None:
    """Path of the adapter that an iteration made, from the run folder."""
    if item.train is None or not item.train.manifest.metrics["trained"]:
        return None
    return item.train.file("adapter").relative_to(folder).as_posix()


def of_policy(folder: Path, policy: str) -> list[dict[str, Any]]:
    """The rollouts behind a policy (a digest or its beginning): one row per rollout and iteration, oldest first.

    Empty for the base model, which nothing trained.

    Raises:
        RecipeError: when the run has no such policy, or the beginning fits several.
    """
    run = runfile.read_run(folder)
    wanted = _one_of(run.policies, policy, folder)
    rows: list[dict[str, Any]] = []
    for item in iterations(folder):
        if item.before == wanted:
            break
        if item.group is None or item.after is None or item.after == item.before:
            continue
        members = read_frame(item.group.file("groups.parquet"), GROUPS, validate=False)
        counts = members.group_by("example_id", "rollout_id").agg(
            pl.len().alias("members"), pl.col("copy_kind").ne("none").sum().alias("copies")
        )
        ordered = counts.sort("example_id", "rollout_id")
        rows += [{"iteration": item.index, **row} for row in ordered.iter_rows(named=True)]
    return rows


def of_rollout(folder: Path, rollout: str) -> dict[str, Any]:
    """What came of a rollout (an id or its beginning): its row, its memberships, what was left out, later policies.

    Raises:
        RecipeError: when the run has no such rollout, or the beginning fits several.
    """
    run = runfile.read_run(folder)
    for item in iterations(folder):
        if item.rollout is None:
            continue
        rollouts = read_frame(item.rollout.file("rollouts.parquet"), ROLLOUTS, validate=False)
        found = rollouts.filter(pl.col("rollout_id").str.starts_with(rollout))
        if found.height > 1:
            raise RecipeError(
                f"'{rollout}' fits {found.height} rollouts of iteration {item.index}: give more of its id"
            )
        if found.height == 1:
            return _fate(found.row(0, named=True), item, run)
    raise RecipeError(f"{folder} has no rollout '{rollout}'")


def _fate(row: dict[str, Any], item: Iteration, run: RunFile) -> dict[str, Any]:
    mine = pl.col("rollout_id") == row["rollout_id"]
    fate: dict[str, Any] = {"rollout": row, "iteration": item.index, "members": [], "excluded": [], "policies": []}
    if item.group is not None:
        members = read_frame(item.group.file("groups.parquet"), GROUPS, validate=False).filter(mine)
        fate["members"] = members.to_dicts()
        excluded = read_frame(item.group.file("excluded.parquet"), EXCLUDED, validate=False).filter(mine)
        fate["excluded"] = excluded.to_dicts()
    if fate["members"] and item.after not in (None, item.before):
        fate["policies"] = list(dict.fromkeys(run.policies[item.index + 1 :]))
    return fate


def _one_of(known: tuple[str, ...], prefix: str, folder: Path) -> str:
    fits = sorted({item for item in known if item.startswith(prefix)})
    if len(fits) != 1:
        names = ", ".join(item[:12] for item in dict.fromkeys(known))
        problem = f"fits {len(fits)} of them" if fits else "is none of them"
        raise RecipeError(
            f"policy '{prefix}' {problem}; {folder} has {names}. Policies of an earlier recipe come back into view "
            "when `mmgrpo run` is given that recipe again: their artifacts are kept."
        )
    return fits[0]
