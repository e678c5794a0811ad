"""lineage: which rollouts trained an adapter, and what came of a rollout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from pipeline import runfile
from pipeline.jobs import stage_of
from pipeline.runfile import RunFile
from pipeline.store import Store
from schemas.errors import RecipeError
from schemas.groups import EXCLUDED, GROUPS
from schemas.parquet import read_frame, read_rows
from schemas.policies import POLICIES, SHARED
from schemas.rollouts import ROLLOUTS
from schemas.training import TRAINED
from stages.contract import Artifact
from stages.engines.adapters import AdapterSet, read_adapters


@dataclass(frozen=True)
class Iteration:
    """The artifacts of one iteration, as far as they exist, and the policies before and after it."""

    index: int
    rollout: Artifact | None
    group: Artifact | None
    logprobs: tuple[Artifact, ...]
    """One for each policy that was scored."""
    train: Artifact | None
    before: str
    after: str | None
    prompts: Artifact | None
    """The frozen prompts that its rollouts ran with; None for the program's own."""
    grouped_from: tuple[Artifact, ...]
    """The rollout artifacts that its groups were made of: the snapshot of traces, replayed ones, oldest first, its
    teachers', and its own."""
    teachers: dict[str, Artifact] = field(default_factory=dict)
    """Its teachers' rollouts, by teacher."""

    @property
    def rolled(self) -> tuple[Artifact, ...]:
        """The rollout artifacts that it made: the student's, and its teachers'."""
        return (*([self.rollout] if self.rollout else []), *self.teachers.values())


def iterations(folder: Path) -> list[Iteration]:
    """The iterations of a run, by run.json."""
    run = runfile.read_run(folder)
    store = Store(folder / "artifacts")
    return list(_iterations(run, store))


def _iterations(run: RunFile, store: Store) -> Iterator[Iteration]:
    rolled: list[Artifact] = []
    logged = [store.open("ingest", run.setup["ingest"])] if "ingest" in run.setup else []
    prompts = store.open("prompts", run.setup["prompts"]) if "prompts" in run.setup else None
    for index, stages in enumerate(run.iterations):
        parts = {name: store.open(stage_of(name), key) for name, key in stages.items()}
        after = run.policies[index + 1] if index + 1 < len(run.policies) else None
        prompts = parts.get("prompts", prompts)
        rollout, group, train = (parts.get(stage) for stage in ("rollout", "group", "train"))
        scores = tuple(parts[name] for name in sorted(parts) if stage_of(name) == "logprobs")
        teachers = {name.partition(".")[2]: parts[name] for name in sorted(parts) if stage_of(name) == "teacher"}
        grouped = grouped_from(group, rollout, [*logged, *rolled, *teachers.values()])
        item = Iteration(index, rollout, group, scores, train, run.policies[index], after, prompts, grouped, teachers)
        yield item
        rolled += item.rolled


def grouped_from(group: Artifact | None, own: Artifact | None, others: Sequence[Artifact]) -> tuple[Artifact, ...]:
    """The rollout artifacts that groups were made of: those of the others that took part, and `own`."""
    inputs = set(group.manifest.payload.get("inputs", {}).values()) if group else set()
    return (*(artifact for artifact in others if artifact.digest in inputs), *([own] if own else []))


def chain(folder: Path) -> list[dict[str, Any]]:
    """Per iteration: policy, artifact digests, and how many rollouts and members went into the next policy.

    With several adapters each has a row in every iteration that trained: where it lies, its digest, and the members
    that moved it; 0 members say that it was carried over as it was.
    """
    rows: list[dict[str, Any]] = []
    for item in iterations(folder):
        row: dict[str, Any] = {"iteration": item.index, "policy": item.before}
        row["prompts"] = item.prompts.digest if item.prompts else None
        row["rollout"] = item.rollout.digest if item.rollout else None
        row["teachers"] = [artifact.digest for artifact in item.teachers.values()]
        row["group"] = item.group.digest if item.group else None
        row["logprobs"] = [artifact.digest for artifact in item.logprobs]
        row["train"] = item.train.digest if item.train else None
        row["next_policy"] = item.after
        row |= {"adapter": None, "adapter_digest": None, "modules": None}
        row["rollouts"] = sum(each.manifest.files["rollouts.parquet"].rows or 0 for each in item.rolled) or None
        row["members"] = _members(item)
        rows += [row | adapter for adapter in _adapter_rows(folder, item)] or [row]
    return rows


def _members(item: Iteration) -> int | None:
    """Members that were trained on; those of the groups where no train stage has said so yet."""
    if item.train is not None and "trained.parquet" in item.train.manifest.files:
        return int(read_frame(item.train.file("trained.parquet"), TRAINED, validate=False)["members"].sum())
    return item.group.manifest.files["groups.parquet"].rows if item.group else None


def newest_adapters(folder: Path) -> dict[str, Path]:
    """The adapters of the newest policy by name: PEFT folders. Empty where nothing is trained yet."""
    made = [found for item in iterations(folder) if (found := _adapters(item))]
    return made[-1].folders if made else {}


def _adapters(item: Iteration) -> AdapterSet | None:
    """The adapters that an iteration made or carried over."""
    if item.train is None or not item.train.manifest.metrics["trained"]:
        return None
    return read_adapters(item.train.path)


def _adapter_rows(folder: Path, item: Iteration) -> list[dict[str, Any]]:
    """Where each adapter of an iteration lies and, with several, its own number of members."""
    found = _adapters(item)
    if found is None or item.train is None:
        return []
    policies = read_rows(item.train.file("policies.parquet"), POLICIES)
    digests = json.loads(next(row["adapters"] for row in policies if row["policy"] == item.after))
    rows: list[dict[str, Any]] = []
    for name, path in found.folders.items():
        modules = sorted(module for module, own in found.names.items() if own == name)
        row = {"adapter": path.relative_to(folder).as_posix(), "adapter_digest": digests[modules[0]], "modules": None}
        if modules != [SHARED]:
            told = item.train.manifest.metrics["adapters"]
            row |= {"modules": ", ".join(modules), "members": told[name]["members"] if _moved(item, name) else 0}
        rows.append(row)
    return rows


def _moved(item: Iteration, name: str) -> bool:
    """Whether an iteration took a step with an adapter."""
    assert item.train is not None
    return int(item.train.manifest.metrics["adapters"].get(name, {"steps": 0})["steps"]) > 0


def _trained_by(item: Iteration) -> dict[str, str]:
    """The adapter that each module's members moved in an iteration, under "*" where all moved one."""
    found = _adapters(item)
    if found is None:
        return {}
    return {module: name for module, name in found.names.items() if module == SHARED or _moved(item, name)}


def _with_adapter(members: pl.DataFrame, item: Iteration) -> pl.DataFrame:
    """Members with the name of the adapter that they moved; null where they moved none.

    The train stage does not admit every member: a teacher's bad ones, or all but the best in rejection fine-tuning.
    """
    names = _trained_by(item)
    name = pl.lit(names.get(SHARED), pl.String)
    if SHARED not in names:
        name = pl.col("module").replace_strict(names, default=None, return_dtype=pl.String)
    return members.with_columns(adapter=pl.when(_admitted(members, item)).then(name))


def _admitted(members: pl.DataFrame, item: Iteration) -> pl.Series:
    """Which members the train stage admitted; of a call that stands in a group several times the original first."""
    if item.train is None or "trained.parquet" not in item.train.manifest.files:
        return pl.Series([True] * members.height, dtype=pl.Boolean)
    key = ["group_id", "rollout_id", "call_index"]
    counts = read_frame(item.train.file("trained.parquet"), TRAINED, validate=False)
    is_copy = pl.col("copy_kind") != "none"
    ranked = members.select(*key, rank=pl.int_range(pl.len()).over(key, order_by=is_copy))
    joined = ranked.join(counts, on=key, how="left", maintain_order="left")
    return joined.select(pl.col("rank") < pl.col("members").fill_null(0)).to_series()


def of_policy(folder: Path, policy: str) -> list[dict[str, Any]]:
    """The rollouts behind a policy (a digest or its beginning): one row per iteration, adapter and rollout.

    Oldest first. Empty for the base model, which nothing trained.

    Raises:
        RecipeError: when the run has no such policy, or the beginning fits several.
    """
    run = runfile.read_run(folder)
    wanted = one_of(run.policies, policy, folder)
    rows: list[dict[str, Any]] = []
    for item in iterations(folder):
        if item.before == wanted:
            break
        if item.group is None or item.after is None or item.after == item.before:
            continue
        members = read_frame(item.group.file("groups.parquet"), GROUPS, validate=False)
        moved = _with_adapter(members, item).drop_nulls("adapter")
        counts = moved.group_by("adapter", "example_id", "rollout_id").agg(
            pl.len().alias("members"), pl.col("copy_kind").ne("none").sum().alias("copies")
        )
        ordered = counts.sort("adapter", "example_id", "rollout_id")
        rows += [{"iteration": item.index, **row} for row in ordered.iter_rows(named=True)]
    return rows


def of_rollout(folder: Path, rollout: str) -> dict[str, Any]:
    """What came of a rollout (an id or its beginning): its row, its memberships, what was left out, later policies.

    Memberships and exclusions are those of every iteration that grouped it: its own, and those that replayed it.

    Raises:
        RecipeError: when the run has no such rollout, or the beginning fits several.
    """
    run, items = runfile.read_run(folder), iterations(folder)
    for item in items:
        if item.rollout is None:
            continue
        files = [artifact.file("rollouts.parquet") for artifact in item.rolled]
        rollouts = read_frame(files, ROLLOUTS, validate=False)
        found = rollouts.filter(pl.col("rollout_id").str.starts_with(rollout))
        if found.height > 1:
            raise RecipeError(
                f"'{rollout}' fits {found.height} rollouts of iteration {item.index}: give more of its id"
            )
        if found.height == 1:
            return _fate(found.row(0, named=True), item, items, run)
    raise RecipeError(f"{folder} has no rollout '{rollout}'")


def _fate(row: dict[str, Any], own: Iteration, items: Sequence[Iteration], run: RunFile) -> dict[str, Any]:
    mine = pl.col("rollout_id") == row["rollout_id"]
    fate: dict[str, Any] = {"rollout": row, "iteration": own.index, "members": [], "excluded": [], "policies": []}
    for item in items:
        if item.group is None or own.rollout not in item.grouped_from:
            continue
        members = read_frame(item.group.file("groups.parquet"), GROUPS, validate=False).filter(mine)
        excluded = read_frame(item.group.file("excluded.parquet"), EXCLUDED, validate=False).filter(mine)
        found = _with_adapter(members, item).to_dicts()
        fate["members"] += [{"iteration": item.index, **entry} for entry in found]
        fate["excluded"] += [{"iteration": item.index, **entry} for entry in excluded.to_dicts()]
        moved = any(entry["adapter"] for entry in found)
        if moved and item.after not in (None, item.before) and not fate["policies"]:
            fate["policies"] = list(dict.fromkeys(run.policies[item.index + 1 :]))
    return fate


def one_of(known: tuple[str, ...], prefix: str, folder: Path) -> str:
    """The policy of a run that a digest or its beginning names.

    Raises:
        RecipeError: when it fits none of them, or several.
    """
    fits = sorted({item for item in known if item.startswith(prefix)})
    if len(fits) != 1:
        names = ", ".join(item[:12] for item in dict.fromkeys(known))
        problem = f"fits {len(fits)} of them" if fits else "is none of them"
        raise RecipeError(
            f"policy '{prefix}' {problem}; {folder} has {names}. Policies of an earlier recipe come back into view "
            "when `mmgrpo run` is given that recipe again: their artifacts are kept."
        )
    return fits[0]
