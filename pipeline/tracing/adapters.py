"""Adapters over a run: which rollouts are behind one, and which adapters came of a rollout.

A rollout is behind an adapter when it moved it, or one that it was continued from. The two directions are walked
separately, each in its own way, and must agree.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

from pipeline.graph import Graph, made_policy
from pipeline.moved import adapters_of, digests_of, members_moving, took_steps
from schemas.errors import DataError, RecipeError
from schemas.policies import SHARED
from stages.contract import Artifact
from stages.places import place_of


@dataclass(frozen=True)
class Made:
    """An adapter as one train stage left it."""

    digest: str
    name: str
    modules: tuple[str, ...]
    """The modules that it serves; `*` for all."""
    path: Path
    train: Artifact
    moved: bool
    """Whether the stage took a step with it; otherwise it was carried over byte for byte."""
    before: str | None
    """Digest of the adapter that it was continued from; None for a fresh one."""


class Adapters:
    """All adapters of a run, those of earlier recipes too."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        trains = sorted(graph.of("train"), key=lambda train: int(train.manifest.payload["params"]["iteration"]))
        self.made = tuple(item for train in trains for item in _made(graph, train))

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """Digests of all adapters."""
        return tuple(dict.fromkeys(item.digest for item in self.made))

    def makers(self, digest: str) -> tuple[Made, ...]:
        """The stages that took the steps which gave an adapter its bytes."""
        return tuple(item for item in self.made if item.digest == digest and item.moved)

    def policies(self, digest: str) -> tuple[str, ...]:
        """The policies that an adapter is part of."""
        found = {made_policy(item.train) for item in self.made if item.digest == digest}
        return tuple(policy for policy in self.graph.policies if policy in found)

    def line(self, digest: str) -> tuple[str, ...]:
        """An adapter and those that it was continued from, itself first."""
        found = [digest]
        for name in found:
            found += [item.before for item in self.makers(name) if item.before and item.before not in found]
        return tuple(found)

    def moving(self, item: Made) -> pl.DataFrame:
        """The members that moved an adapter in one stage: rows of its group table."""
        group = self.graph.inputs(item.train).get("group")
        if group is None:
            raise DataError(f"{item.train.path}: the groups that it was trained on are not in the run any more")
        return members_moving(group, item.train).filter(pl.col("adapter") == item.name)

    def rollouts_behind(self, digest: str) -> tuple[str, ...]:
        """Ids of the rollouts that moved an adapter or one that it was continued from, sorted."""
        frames = [self.moving(item)["rollout_id"] for name in self.line(digest) for item in self.makers(name)]
        return tuple(sorted({rollout for frame in frames for rollout in frame}))

    def moved_by(self, column: str, value: str) -> tuple[tuple[Made, pl.DataFrame], ...]:
        """The adapters that members with a value (a rollout's id, an example's) moved, each with those members."""
        each = ((item, self.moving(item).filter(pl.col(column) == value)) for item in self.made if item.moved)
        return tuple((item, rows) for item, rows in each if rows.height)

    def descendants(self, digests: Collection[str]) -> tuple[str, ...]:
        """Adapters and all that were continued from them, in order of iteration."""
        found = set(digests)
        while more := {item.digest for item in self.made if item.moved and item.before in found} - found:
            found |= more
        return tuple(digest for digest in self.digests if digest in found)


def _made(graph: Graph, train: Artifact) -> list[Made]:
    found = adapters_of(train)
    if found is None:
        return []
    now, previous = digests_of(train, found), graph.inputs(train).get("previous")
    before = {} if previous is None else digests_of(previous, adapters_of(previous))
    made = []
    for name, path in found.folders.items():
        modules = tuple(sorted(module for module, own in found.names.items() if own == name))
        digest = now[modules[0]]
        was = next((before[module] for module in modules if module in before), None)
        made.append(Made(digest, name, modules, path, train, took_steps(train, name), was))
    return made


def served(made: Made) -> str:
    """What an adapter serves, in words."""
    return "all modules" if made.modules == (SHARED,) else ", ".join(made.modules)


def find_adapter(adapters: Adapters, named: str, folder: Path) -> str:
    """The digest of an adapter that a person names.

    Args:
        adapters: of the run.
        named: an adapter's folder or weights file, also a copy of one elsewhere, or its address; or the first digits
            of its digest, or of the policy that it alone makes.
        folder: the run's.

    Raises:
        RecipeError: when the run has no such adapter.
        DataError: when a folder is none of an adapter.
    """
    from pipeline.tracing.find import one_id

    try:
        path = place_of(Path(), named)
    except ValueError as error:
        raise RecipeError(f"--adapter: {error}") from None
    if path.exists():
        return _of_files(adapters, path, folder)
    policies = [policy for policy in adapters.graph.policies if policy.startswith(named)]
    if len(policies) == 1 and (mine := [item for item in adapters.made if made_policy(item.train) == policies[0]]):
        if len(mine) > 1:
            names = ", ".join(f"{item.digest[:12]} ({item.name})" for item in mine)
            raise RecipeError(f"policy {policies[0][:12]} has {len(mine)} adapters: name one of {names}")
        return mine[0].digest
    trains = ", ".join(item.train.path.name for item in adapters.made) or "no train artifact"
    return one_id(adapters.digests, named, f"adapter in {folder} (looked through: {trains}; no such file either)")


def _of_files(adapters: Adapters, path: Path, folder: Path) -> str:
    from schemas.canonical import digest_file
    from stages.engines.adapters import CONFIG, WEIGHTS, adapter_digest

    place = path if path.is_dir() else path.parent
    if path.is_dir() and not (place / WEIGHTS).is_file():
        inside = sorted(str(found.parent) for found in place.rglob(WEIGHTS))
        hint = f": name one of {', '.join(inside[:4])}" if inside else f": it has no {WEIGHTS}"
        raise RecipeError(f"{path} is no adapter's folder{hint}")
    if (place / CONFIG).is_file() and (path.is_dir() or path.name in (CONFIG, WEIGHTS)):
        digest = adapter_digest(place)
        if digest in adapters.digests:
            return digest
    weights = path / WEIGHTS if path.is_dir() else path
    bytes_of = digest_file(weights)
    for item in adapters.made:
        name = (item.path / WEIGHTS).relative_to(item.train.path).as_posix()
        if item.train.manifest.files[name].sha256 == bytes_of:
            return item.digest
    known = ", ".join(digest[:12] for digest in adapters.digests) or "none"
    raise RecipeError(
        f"{weights} (sha256 {bytes_of[:12]}) is no adapter that {folder} made: neither its weights nor its digest are "
        f"those of one; the run has {known}"
    )
