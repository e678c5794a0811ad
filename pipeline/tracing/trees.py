"""The trees of lineage: of an adapter, a rollout, an example, a trace, both ways."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.graph import Graph, made_policy
from pipeline.tracing.adapters import Adapters, Made, find_adapter, served
from pipeline.tracing.find import ROLLED, find_example, find_rollout, find_trace, groups_of, table_files
from pipeline.tracing.node import Node, Traced
from schemas.groups import EXCLUDED, GROUPS
from schemas.parquet import read_frame
from schemas.rollouts import ROLLOUTS
from schemas.scores import SCORES
from schemas.traces import TRACES
from stages.contract import Artifact


class Tracer:
    """Lineage in one run folder."""

    def __init__(self, graph: Graph, folder: Path) -> None:
        self.graph, self.folder = graph, folder
        self.adapters = Adapters(graph)

    def adapter(self, named: str) -> Traced:
        """Of an adapter: the rollouts that moved it and what it was continued from; what it sampled and scored.

        Raises:
            RecipeError: when the run has no such adapter.
        """
        digest = find_adapter(self.adapters, named, self.folder)
        item = next(item for item in self.adapters.made if item.digest == digest)
        examples = {row for name in self.adapters.line(digest) for row in self._examples_behind(name)}
        facts: dict[str, Any] = {"name": item.name, "serves": served(item), "path": self._place(item.path)}
        facts |= {"rollouts_behind": len(self.adapters.rollouts_behind(digest)), "examples_behind": len(examples)}
        return Traced(Node("adapter", digest, facts), self._before(digest), self._after(digest))

    def rollout(self, named: str) -> Traced:
        """Of a program run: its example and what sampled it; the groups it was put into and the adapters it moved.

        Raises:
            RecipeError: when the run has no such rollout.
        """
        row, holders = find_rollout(self.graph, named, self.folder)
        return Traced(_rollout(row), self._rolled_from(row, holders), self._came_of_rollout(row, holders))

    def example(self, named: str) -> Traced:
        """Of an example: where it came from; its rollouts, the adapters that they moved, and its scores.

        Raises:
            RecipeError: when the run has no such example.
        """
        row, holders = find_example(self.graph, named, self.folder)
        name = row["example_id"]
        subject = Node("example", name, {"split": row["split"], "inputs": row["inputs"]})
        upstream = [self._table(holder) for holder in holders]
        mine = [self._rollouts(holder, pl.col("example_id") == name) for holder in self.graph.of(*ROLLED)]
        moved = [self._moved(item, rows) for item, rows in self.adapters.moved_by("example_id", name)]
        return Traced(subject, upstream, [*(node for node in mine if node), *moved, *self._scores_of(name)])

    def trace(self, named: str) -> Traced:
        """Of a logged trace: the snapshot that it is in; what came of its rollout.

        Raises:
            RecipeError: when no snapshot in the run holds it.
        """
        row, holders = find_trace(self.graph, named, self.folder)
        told = ("format", "calls", "reason", "reward_reason")
        subject = Node("trace", row["trace"], {name: row[name] for name in told})
        upstream = [self._table(holder) for holder in holders]
        if row["rollout_id"] is None:
            return Traced(subject, upstream, [])
        rollout, its_holders = find_rollout(self.graph, row["rollout_id"], self.folder)
        node = _rollout(rollout)
        node.children = self._came_of_rollout(rollout, its_holders)
        return Traced(subject, upstream, [node])

    def _before(self, digest: str) -> list[Node]:
        """The stages that made an adapter, with the rollouts that moved it, and the adapter before it."""
        nodes = []
        for item in self.adapters.makers(digest):
            rows = self.adapters.moving(item)
            node = self._stage(item.train, {"members": rows.height, "rollouts": rows["rollout_id"].n_unique()})
            for holder in self._holders(item.train):
                counts = rows.group_by("rollout_id").agg(members=pl.len()).sort("rollout_id")
                if found := self._rollouts(holder, pl.col("rollout_id").is_in(counts["rollout_id"].implode()), counts):
                    found.children += self._sampled_by(holder)
                    node.children.append(found)
            if base := self.graph.inputs(item.train).get("base"):
                node.children.append(self._table(base))
            if item.before:
                before = Node("adapter", item.before, {}, self._before(item.before))
                node.children.append(before)
            nodes.append(node)
        return nodes

    def _after(self, digest: str) -> list[Node]:
        """The policies that an adapter is part of, with what they sampled and scored, and the adapters after it."""
        nodes = [self._policy(policy) for policy in self.adapters.policies(digest)]
        later = [item for item in self.adapters.made if item.moved and item.before == digest]
        return nodes + [self._adapter(item) for item in later if item.digest != digest]

    def _adapter(self, item: Made, facts: dict[str, Any] | None = None) -> Node:
        about = {"name": item.name, "iteration": item.train.manifest.payload["params"]["iteration"], **(facts or {})}
        about |= {"path": self._place(item.path)}
        return Node("adapter", item.digest, about, self._after(item.digest))

    def _policy(self, policy: str) -> Node:
        holder = self.graph.holder(policy)
        used = [] if holder is None else [item for role, item in self.graph.users(holder) if role == "adapter"]
        uses = [item for item in used if item.manifest.payload["params"].get("policy") == policy]
        order = ("rollout", "teacher", "prompts", "evaluate", "drift")
        uses = [item for stage in order for item in uses if item.manifest.stage == stage]
        return Node("policy", policy, {}, [self._use(item) for item in uses])

    def _use(self, item: Artifact) -> Node:
        metrics, params = item.manifest.metrics, item.manifest.payload["params"]
        if item.manifest.stage == "drift":
            return self._stage(item, {"split": params["split"]})
        if item.manifest.stage == "evaluate":
            return self._stage(item, {"split": params["split"], "mean": metrics["mean"], "examples": metrics["n"]})
        return self._stage(item, {"rollouts": metrics.get("rollouts")})

    def _rolled_from(self, row: dict[str, Any], holders: Sequence[Artifact]) -> list[Node]:
        nodes = [Node("example", row["example_id"])]
        for holder in holders:
            about = self._stage(holder, {"source": row["source"]})
            about.children = [*self._sampled_by(holder), *self._traces(holder, row["rollout_id"])]
            nodes.append(about)
        return nodes

    def _sampled_by(self, holder: Artifact) -> list[Node]:
        """What a stage that runs the program was given: examples, program, prompts, and the policy's adapters."""
        nodes = []
        for role, item in self.graph.inputs(holder).items():
            if item is None or role not in ("examples", "program", "prompts"):
                continue
            nodes.append(self._table(item))
        policy = holder.manifest.payload["params"].get("policy")
        if policy is not None:
            mine = [item for item in self.adapters.made if made_policy(item.train) == policy]
            adapters = [Node("adapter", item.digest, {"name": item.name}) for item in mine]
            nodes.append(Node("policy", policy, {}, adapters))
        return nodes

    def _came_of_rollout(self, row: dict[str, Any], holders: Sequence[Artifact]) -> list[Node]:
        mine = pl.col("rollout_id") == row["rollout_id"]
        nodes = []
        for group in groups_of(self.graph, holders):
            members = read_frame(group.file("groups.parquet"), GROUPS, validate=False).filter(mine)
            left = read_frame(group.file("excluded.parquet"), EXCLUDED, validate=False).filter(mine)
            counts = sorted(left["reason"].value_counts().iter_rows())
            reasons = ", ".join(f"{reason} {count}" for reason, count in counts)
            nodes.append(self._stage(group, {"members": members.height, "excluded": reasons or None}))
        moved = self.adapters.moved_by("rollout_id", row["rollout_id"])
        return nodes + [self._moved(item, rows) for item, rows in moved]

    def _moved(self, item: Made, rows: pl.DataFrame) -> Node:
        return self._adapter(item, {"moved_by_members": rows.height})

    def _rollouts(self, holder: Artifact, wanted: pl.Expr, counts: pl.DataFrame | None = None) -> Node | None:
        """Some rollouts of an artifact below a node for it; None where it holds none of them."""
        files = table_files(holder, ROLLOUTS)
        if not files or not all(path.exists() for path in files):
            return None
        rows = read_frame(files, ROLLOUTS, validate=False).filter(wanted).sort("rollout_id")
        if rows.is_empty():
            return None
        if counts is not None:
            rows = rows.join(counts, on="rollout_id", how="left", maintain_order="left")
        node = self._stage(holder, {"rollouts": rows.height, "examples": rows["example_id"].n_unique()})
        node.children = [_rollout(row) for row in rows.iter_rows(named=True)]
        return node

    def _holders(self, train: Artifact) -> list[Artifact]:
        found = self.graph.inputs(train).items()
        return [item for role, item in found if item is not None and role.partition(".")[0] == "rollout"]

    def _examples_behind(self, digest: str) -> Iterable[str]:
        for item in self.adapters.makers(digest):
            yield from self.adapters.moving(item)["example_id"]

    def _scores_of(self, example: str) -> list[Node]:
        nodes = []
        for item in self.graph.of("evaluate"):
            rows = read_frame(item.file("scores.parquet"), SCORES, validate=False)
            rows = rows.filter(pl.col("example_id") == example)
            if rows.height:
                params = item.manifest.payload["params"]
                facts = {"split": params["split"], "policy": params["policy"], "scores": rows["score"].to_list()}
                nodes.append(self._stage(item, facts))
        return nodes

    def _traces(self, holder: Artifact, rollout: str) -> list[Node]:
        if holder.manifest.stage != "ingest":
            return []
        files = table_files(holder, TRACES)
        rows = read_frame(files, TRACES, columns=["trace", "rollout_id", "format"], validate=False)
        mine = rows.filter(pl.col("rollout_id") == rollout)
        return [Node("trace", row["trace"], {"format": row["format"]}) for row in mine.iter_rows(named=True)]

    def _stage(self, item: Artifact, facts: dict[str, Any]) -> Node:
        params = item.manifest.payload["params"]
        about = {"iteration": params.get("iteration"), **facts, "path": self._place(item.path)}
        return Node(_KINDS.get(item.manifest.stage, item.manifest.stage), item.digest, about)

    def _table(self, item: Artifact) -> Node:
        params = item.manifest.payload["params"]
        facts: dict[str, Any] = {"data_file": params.get("data")}
        if item.manifest.stage == "program":
            facts = {"factory": params["identity"]["factory"]}
        return self._stage(item, facts)

    def _place(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix() if path.is_relative_to(self.folder) else path.as_posix()


_KINDS = {"rollout": "rollouts", "teacher": "teacher's rollouts", "group": "groups", "evaluate": "scores"}
_KINDS |= {"ingest": "snapshot", "train": "training"}


def _rollout(row: dict[str, Any]) -> Node:
    facts = {name: row.get(name) for name in ("example_id", "source", "status", "reward", "members")}
    return Node("rollout", row["rollout_id"], {name: value for name, value in facts.items() if value is not None})


def as_text(traced: Traced, *, as_json: bool) -> str:
    """A lineage for a person or a program."""
    return json.dumps(traced.as_json(), indent=2) if as_json else str(traced)
