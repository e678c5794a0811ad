"""What a model card says, as plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pipeline.costing import Spent, together
from pipeline.costs import ledger_of
from pipeline.drifting import drift_metrics
from pipeline.exporting.chosen import Chosen
from pipeline.release.records import decisions
from pipeline.reporting.data import PolicyScore
from pipeline.reporting.opened import OpenRun, frame
from pipeline.reporting.scores import collect_scores
from schemas.decisions import Decision
from schemas.rollouts import INVOCATIONS
from stages.contract import Artifact
from stages.engines.adapters import without_folder


@dataclass(frozen=True)
class Score:
    """What the policy scored on a split, and what the base did."""

    split: str
    base: PolicyScore | None
    policy: PolicyScore


@dataclass(frozen=True)
class Data:
    """An artifact of rollouts that it was trained on."""

    iteration: int
    source: str
    rollouts: int | None
    digest: str


@dataclass(frozen=True)
class Facts:
    """Everything that a card says."""

    name: str
    policy: str
    iterations: int
    recipe: dict[str, Any]
    """Resolved: nothing is left out yet."""
    recipe_set: dict[str, Any]
    """The fields of it that are not the defaults."""
    base_name: str
    base: dict[str, str]
    adapters: dict[str, tuple[str, ...]]
    """The modules of each adapter, by its name; `*` stands for all."""
    digests: dict[str, str]
    """Digest of the adapter by module."""
    examples: str
    """Digest of the examples."""
    data: str | None
    """sha256 of the file that the examples were read from."""
    splits: dict[str, int]
    snapshot: str | None
    """Digest of the snapshot of traces, where there is one."""
    snapshot_figures: dict[str, Any]
    rolled: tuple[Data, ...]
    train: tuple[dict[str, Any], ...]
    """Metrics of the train stages that made it, in order."""
    fidelity: dict[str, int]
    """Calls among the rollouts by how far their tokens are known."""
    scores: tuple[Score, ...]
    tests_opened: int
    spent: Spent
    """All that led to it, scoring included."""
    currency: str
    merged: str | None = None
    """dtype of merged weights; None for an adapter."""
    licence: str | None = None
    """The base's, as its own card names it."""
    licence_files: tuple[str, ...] = ()
    """The base's, copied."""
    gate: tuple[Decision, ...] = ()
    """Decisions about it: of the release gate, and by hand."""
    drift: dict[str, Any] = field(default_factory=dict)
    """What drift checks measured of it."""


def facts_of(run: OpenRun, chosen: Chosen) -> Facts:
    """Gather what is known of a policy."""
    examples = run.store.open("examples", run.state.setup["examples"]).manifest
    snapshot = run.store.find("ingest", run.state.setup["ingest"]) if "ingest" in run.state.setup else None
    ledger = ledger_of(run)
    led = [entry.spent for entry in ledger.entries if entry.iteration is None or entry.iteration < chosen.position]
    adapters = {
        name: tuple(sorted(module for module, own in chosen.adapters.names.items() if own == name))
        for name in chosen.adapters.folders
    }
    return Facts(
        name=run.state.name,
        policy=chosen.policy,
        iterations=chosen.position,
        recipe=run.recipe.model_dump(mode="json"),
        recipe_set=run.recipe.model_dump(mode="json", exclude_defaults=True),
        base_name=without_folder(run.recipe.model.base),
        base=chosen.base,
        adapters=adapters,
        digests=chosen.digests,
        examples=examples.digest,
        data=examples.payload["params"]["data"],
        splits=dict(examples.metrics["splits"]),
        snapshot=snapshot.digest if snapshot else None,
        snapshot_figures=snapshot.manifest.metrics if snapshot else {},
        rolled=tuple(_rolled(chosen)),
        train=tuple(item.train.manifest.metrics for item in chosen.made_of if item.train is not None),
        fidelity=_fidelity(chosen),
        scores=tuple(_scores(run, chosen)),
        tests_opened=run.state.tests_opened,
        spent=together(led),
        currency=ledger.currency,
        gate=tuple(decision for decision in decisions(run.folder) if decision.policy == chosen.policy),
        drift=drift_metrics(run.folder, run.state, chosen.policy) or {},
    )


def _rolled(chosen: Chosen) -> list[Data]:
    found: list[Data] = []
    for item in chosen.made_of:
        own = {"student": item.rollout, **{f"teacher {name}": made for name, made in sorted(item.teachers.items())}}
        for source, artifact in own.items():
            if artifact is not None:
                rows = artifact.manifest.files["rollouts.parquet"].rows
                found.append(Data(item.index, source, rows, artifact.digest))
    return found


def _fidelity(chosen: Chosen) -> dict[str, int]:
    made: dict[str, Artifact] = {one.digest: one for item in chosen.made_of for one in item.grouped_from}
    counts: Counter[str] = Counter()
    for artifact in made.values():
        counts.update(frame(artifact, INVOCATIONS, ["fidelity"])["fidelity"].to_list())
    return dict(sorted(counts.items()))


def _scores(run: OpenRun, chosen: Chosen) -> list[Score]:
    found: list[Score] = []
    for split in (run.recipe.examples.dev, run.recipe.examples.test):
        scored = collect_scores(run, split).policies if split else ()
        own = next((score for score in scored if score.policy == chosen.policy), None)
        if own is not None and split is not None:
            found.append(Score(split, next((score for score in scored if score.position == 0), None), own))
    return found
