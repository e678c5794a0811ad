"""lineage: which rollouts trained an adapter, and what came of a rollout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from pipeline import runfile
from pipeline.graph import Graph, made_policy, open_graph
from pipeline.jobs import stage_of
from pipeline.moved import adapters_of, digests_of, members_moving, took_steps, with_adapter
from pipeline.runfile import RunFile
from pipeline.store import Store
from pipeline.tracing.find import find_rollout, groups_of, one_id
from schemas.errors import DataError, RecipeError
from schemas.groups import EXCLUDED, GROUPS
from schemas.parquet import read_frame
from schemas.policies import SHARED
from schemas.training import TRAINED
from stages.contract import Artifact


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
    return list(_iterations(folder, run, store))


def _iterations(folder: Path, run: RunFile, store: Store) -> Iterator[Iteration]:
    rolled: list[Artifact] = []
    logged = [store.open("ingest", run.setup["ingest"])] if "ingest" in run.setup else []
    prompts = store.open("prompts", run.setup["prompts"]) if "prompts" in run.setup else None
    for index, stages in enumerate(run.iterations):
        parts = {name: store.open(stage_of(name), key) for name, key in stages.items()}
        after = run.policies[index + 1] if index + 1 < len(run.policies) else None
        if (train := parts.get("train")) is not None and after != (made := made_policy(train) or run.policies[index]):
            raise DataError(
                f"{folder / runfile.NAME}: policies.{index + 1}: expected {made[:12]}, which {train.folder} made (got "
                f"{str(after)[:12]}). Restore it."
            )
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
    inputs = set(group.manifest.payload["inputs"].values()) if group else set()
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
    made = [found for item in iterations(folder) if (found := adapters_of(item.train))]
    return made[-1].folders if made else {}


def _adapter_rows(folder: Path, item: Iteration) -> list[dict[str, Any]]:
    """Where each adapter of an iteration lies and, with several, its own number of members."""
    found = adapters_of(item.train)
    if found is None or item.train is None:
        return []
    digests = digests_of(item.train, found)
    rows: list[dict[str, Any]] = []
    for name, path in found.folders.items():
        modules = sorted(module for module, own in found.names.items() if own == name)
        row: dict[str, Any] = {
            "adapter": path.relative_to(folder).as_posix(),
            "adapter_digest": digests[modules[0]],
            "modules": None,
        }
        if modules != [SHARED]:
            told = item.train.manifest.metrics.get("adapters", {})
            members = told.get(name, {}).get("members") if took_steps(item.train, name) else 0
            row |= {"modules": ", ".join(modules), "members": members}
        rows.append(row)
    return rows


def of_policy(folder: Path, policy: str) -> list[dict[str, Any]]:
    """The rollouts behind a policy (a digest or its beginning): one row per iteration, adapter and rollout.

    Oldest first. Empty for the base model, which nothing trained. Policies of earlier recipes are known too, as long
    as their artifacts are there.

    Raises:
        RecipeError: when the run has no such policy, or the beginning fits several.
    """
    graph = open_graph(folder)
    wanted = one_id(graph.policies, policy, f"policy of {folder}")
    rows: list[dict[str, Any]] = []
    for train in _trained_before(graph, wanted):
        group = graph.inputs(train).get("group")
        if group is None:
            continue
        moved = members_moving(group, train).drop_nulls("adapter")
        counts = moved.group_by("adapter", "example_id", "rollout_id").agg(
            pl.len().alias("members"), pl.col("copy_kind").ne("none").sum().alias("copies")
        )
        ordered = counts.sort("adapter", "example_id", "rollout_id")
        iteration = int(train.manifest.payload["params"]["iteration"])
        rows += [{"iteration": iteration, **row} for row in ordered.iter_rows(named=True)]
    return rows


def _trained_before(graph: Graph, policy: str) -> list[Artifact]:
    """The train artifacts that made a policy and those that it came from, oldest first."""
    found: list[Artifact] = []
    holder = graph.holder(policy)
    while holder is not None and holder.manifest.stage == "train":
        found.append(holder)
        holder = graph.inputs(holder).get("previous")
    return found[::-1]


def of_rollout(folder: Path, rollout: str) -> dict[str, Any]:
    """What came of a rollout (an id or its beginning): its row, its memberships, what was left out, later policies.

    Memberships and exclusions are those of every group table that it was put into: its own iteration's, those that
    replayed it, and those of earlier recipes. Logged rollouts of a snapshot of traces count like all others.

    Raises:
        RecipeError: when the run has no such rollout, or the beginning fits several.
    """
    graph = open_graph(folder)
    row, holders = find_rollout(graph, rollout, folder)
    mine = pl.col("rollout_id") == row["rollout_id"]
    fate: dict[str, Any] = {"rollout": row, "iteration": row["iteration"], "members": [], "excluded": []}
    policies: set[str] = set()
    for group in groups_of(graph, holders):
        iteration = int(group.manifest.payload["params"]["iteration"])
        about = {"iteration": iteration, "group": group.digest}
        members = read_frame(group.file("groups.parquet"), GROUPS, validate=False).filter(mine)
        excluded = read_frame(group.file("excluded.parquet"), EXCLUDED, validate=False).filter(mine)
        trained: list[Artifact | None] = [
            item for role, item in graph.users(group) if role == "group" and item.manifest.stage == "train"
        ]
        for train in trained or [None]:
            found = with_adapter(members, train).to_dicts()
            policy = made_policy(train) if train else None
            fate["members"] += [{**about, "next_policy": policy, **entry} for entry in found]
            policies |= {policy} if policy and any(entry["adapter"] for entry in found) else set()
        fate["excluded"] += [{**about, **entry} for entry in excluded.to_dicts()]
    return fate | {"policies": [policy for policy in graph.policies if policies & _ancestors(graph, policy)]}


def _ancestors(graph: Graph, policy: str) -> set[str]:
    return {made for train in _trained_before(graph, policy) if (made := made_policy(train)) is not None}


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
