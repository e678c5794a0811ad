"""What traces reached in a run: groups that they are in, adapters trained on those, and all that came of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.manifests import read_stored
from pipeline.store import Store
from pipeline.tombstones import tombstone_of
from schemas.canonical import digest
from schemas.parquet import read_rows
from schemas.policies import POLICIES, named_adapters
from stages.contract import Artifact

STATE = "state.json"
"""The file of a prompts artifact that programs are loaded from."""


@dataclass(frozen=True)
class Sought:
    """What is looked for."""

    snapshots: Collection[str]
    """Digests of the snapshots that held the traces."""
    examples_files: Collection[str]
    """Digests of those snapshots' tables of examples, which a recipe may take its examples from."""
    rollouts: Collection[str]
    """Ids of the traces' rollouts."""
    examples: Collection[str]
    """Ids of examples that only these traces had."""
    learnt: Collection[str] = ()
    """Digests of policies, adapters and saved states of other runs that learnt from them."""


@dataclass
class Reach:
    """What was found in one run. Artifacts by folder: several may have the same bytes, and each counts."""

    held: dict[Path, Artifact] = field(default_factory=dict)
    """Those that hold the traces' own bytes."""
    reached: dict[Path, tuple[Artifact, str]] = field(default_factory=dict)
    """All others that they reached, and how."""
    policies: set[str] = field(default_factory=set)
    """Digests of policies that learnt from them."""
    adapters: set[str] = field(default_factory=set)
    """Digests of the adapters that were made when these were."""
    states: set[str] = field(default_factory=set)
    """Digests of the saved states, with their demonstrations, that were made from them: another run may load one."""

    def add(self, artifact: Artifact, how: str) -> None:
        """Note an artifact that they reached."""
        self.reached[artifact.folder] = (artifact, how)
        if artifact.manifest.stage == "train" and artifact.manifest.metrics["trained"]:
            self.policies.add(artifact.manifest.metrics["policy"])
            self.adapters |= _adapters_made(artifact)
        if STATE in artifact.manifest.files:
            self.states.add(_state_digest(json.loads(artifact.file(STATE).read_bytes())))

    @property
    def digests(self) -> set[str]:
        """Of all these artifacts."""
        return {artifact.digest for artifact in (*self.held.values(), *(found for found, _ in self.reached.values()))}

    def __bool__(self) -> bool:
        return bool(self.held or self.reached)


def reach(run: Path, sought: Sought) -> Reach:
    """Look through every artifact of a run, chosen or not.

    Raises:
        DataError: when a manifest or a table is damaged.
    """
    found = Reach()
    artifacts = [Artifact(path, read_stored(path)) for _, path in Store(run / "artifacts").all()]
    own = _own_examples(artifacts, sought)
    for artifact in artifacts:
        if (how := _direct(artifact, sought, own)) is None:
            continue
        if how == _HOLDS:
            found.held[artifact.folder] = artifact
        else:
            found.add(artifact, how)
    # An optimizer that found nothing better gives back the state that it was given, which learnt nothing.
    given = {state for item in artifacts for state in _loaded(item.manifest.payload["params"].get("identity"))}
    found.states -= given
    while grown := list(_descendants(artifacts, found, sought)):
        for artifact in grown:
            found.add(artifact, "made from what they reached")
        found.states -= given
    return found


def reach_all(runs: Collection[Path], sought: Sought) -> Sought:
    """What is sought, with the policies and adapters of these runs that learnt from the traces.

    One run may teach another, or be read by it as traces, in any order.

    Raises:
        DataError: when a manifest or a table is damaged.
    """
    while True:
        found = [reach(run, sought) for run in runs]
        learnt = {told for item in found for told in (*item.policies, *item.adapters, *item.states)}
        if learnt <= set(sought.learnt):
            return sought
        sought = replace(sought, learnt=learnt | set(sought.learnt))


_HOLDS = "holds them"
_WEIGHED = "not_selected"
"""A call that was left out when members were chosen: which ones were, and perhaps the baseline, came of it too."""


def _own_examples(artifacts: Collection[Artifact], sought: Sought) -> Collection[str]:
    """Ids of the forgotten examples, if the run has its examples from a snapshot that held them."""
    sources = {item.manifest.payload["params"].get("data") for item in artifacts if item.manifest.stage == "examples"}
    return sought.examples if sources & set(sought.examples_files) else ()


def _direct(artifact: Artifact, sought: Sought, examples: Collection[str]) -> str | None:
    """How the traces reached an artifact by themselves; None where they did not."""
    manifest = artifact.manifest
    if manifest.stage == "ingest":
        return _HOLDS if artifact.digest in sought.snapshots else None
    if tombstone_of(artifact.path) is not None:
        return None
    if manifest.stage == "group":
        members = _rows(artifact, "groups.parquet", {"rollout_id": sought.rollouts, "example_id": examples})
        weighed = _rows(artifact, "excluded.parquet", {"rollout_id": sought.rollouts}, reason=_WEIGHED)
        told = f"{members} members of its groups are theirs" if members else "its members were chosen with them in view"
        return told if members or weighed else None
    tables = ("examples.parquet", "rollouts.parquet", "scores.parquet", "drift.parquet")
    return _HOLDS if any(_rows(artifact, name, {"example_id": examples}) for name in tables) else None


def _rows(artifact: Artifact, name: str, wanted: Mapping[str, Collection[str]], *, reason: str | None = None) -> int:
    """Rows of a table that have one of the wanted values in a column; 0 where there is no such table.

    Args:
        artifact: whose table it is.
        name: of the table's file.
        wanted: values by column.
        reason: only rows with this one in the column `reason`.
    """
    asked = {column: list(values) for column, values in wanted.items() if values}
    if name not in artifact.manifest.files or not asked:
        return 0
    hit = pl.any_horizontal(pl.col(column).is_in(values) for column, values in asked.items())
    hit = hit if reason is None else hit & (pl.col("reason") == reason)
    return int(pl.scan_parquet(artifact.file(name)).select(hit.sum()).collect().item())


def _descendants(artifacts: Collection[Artifact], found: Reach, sought: Sought) -> Iterator[Artifact]:
    """What has for an input one of what was reached, or a policy or an adapter that learnt from it."""
    learnt = {*found.policies, *found.adapters, *found.states, *sought.learnt}
    sources = {artifact.digest for artifact, _ in found.reached.values()} | learnt
    for artifact in artifacts:
        known = artifact.folder in found.reached or artifact.folder in found.held
        if not known and (sources & set(_inputs(artifact)) or _sampled_by(artifact, learnt)):
            yield artifact


def _sampled_by(artifact: Artifact, policies: Collection[str]) -> bool:
    """Whether a snapshot holds rollouts of such policies, as one of another run's tables does."""
    taken = artifact.manifest.stage == "ingest" and tombstone_of(artifact.path) is None
    return taken and _rows(artifact, "rollouts.parquet", {"policy": policies}) > 0


def _inputs(artifact: Artifact) -> Iterator[str]:
    payload: Mapping[str, Any] = artifact.manifest.payload
    yield from payload["inputs"].values()
    if isinstance(policy := payload["params"].get("policy"), str):
        yield policy
    teacher = payload["params"].get("teacher")
    if isinstance(teacher, Mapping) and isinstance(teacher.get("adapter"), str):
        yield teacher["adapter"]
    yield from _loaded(payload["params"].get("identity"))
    yield from _loaded(teacher.get("program") if isinstance(teacher, Mapping) else None)


def _loaded(program: Any) -> Iterator[str]:
    """The digest of the saved state that a program was loaded with, if it was with one."""
    if isinstance(program, Mapping) and isinstance(program.get("state"), Mapping):
        yield _state_digest(program["state"])


def _state_digest(state: Mapping[str, Any]) -> str:
    """What a saved state is, without what saving adds about versions."""
    return digest({name: value for name, value in state.items() if name != "metadata"})


def _adapters_made(artifact: Artifact) -> set[str]:
    """Digests of the adapters that a train artifact made, and not only took along."""
    path, policy = artifact.file("policies.parquet"), artifact.manifest.metrics["policy"]
    made, parents = named_adapters(path, policy), {row["policy"]: row["parent"] for row in read_rows(path, POLICIES)}
    before = named_adapters(path, parents[policy]) if parents[policy] in parents else {}
    return set(made.values()) - set(before.values())
