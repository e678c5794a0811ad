"""A job as it was: its stage, inputs, parameters and recipe, from the manifest of what it made; and done once more."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.graph import Graph
from pipeline.launching.making import run_here
from pipeline.partial import Reporter
from pipeline.provenance import provenance
from pipeline.store import Store
from pipeline.tombstones import tombstone_of
from schemas.execution import Execution
from schemas.recipe import Recipe, merge
from stages import base, evaluate, examples, group, logprobs, program, prompts, rollout, teacher, train
from stages.contract import Artifact, Inputs, Stage

STAGES: dict[str, Stage] = {
    stage.NAME: stage
    for stage in (examples, program, base, prompts, rollout, teacher, group, logprobs, train, evaluate)
}


class CannotRedoError(Exception):
    """Why a job cannot be done once more here. It says nothing against what the job made."""


@dataclass(frozen=True)
class Recorded:
    """A job as its manifest has it."""

    artifact: Artifact
    """What it made."""
    stage: Stage
    inputs: Inputs
    recipe: Recipe

    def again(self, folder: Path, execution: Execution, reporter: Reporter) -> Artifact:
        """What the job makes now, in a store of its own below `folder`; found there if it was made before."""
        started, clock = datetime.now(UTC), time.monotonic()
        was = self.artifact.manifest
        with Store(folder).begin(was.stage, was.key, reporter) as out:
            made = Store(folder).find(was.stage, was.key) or out.taken_up()
            if made is not None:
                return made
            metrics = run_here(self.stage, was.key, self.inputs, self.recipe, execution, out=out)
            return out.finish(
                stage=was.stage,
                version=was.stage_version,
                key=was.key,
                payload=was.payload,
                metrics=metrics,
                provenance=provenance(started, time.monotonic() - clock, root=self.inputs.root, execution=execution),
            )


def recorded(artifact: Artifact, graph: Graph, document: Mapping[str, Any], root: Path | None) -> Recorded:
    """The job that made an artifact.

    Args:
        artifact: what it made.
        graph: where its inputs are.
        document: the run's recipe, resolved. What the job's own key says of the recipe goes before it.
        root: the recipe's folder; default: the one that the manifest names.

    Raises:
        CannotRedoError: when another version of the stage made it, an input is gone, or the recipe cannot be had.
    """
    manifest = artifact.manifest
    stage = STAGES.get(manifest.stage)
    if stage is None or manifest.stage_version != stage.VERSION:
        here = "has no such stage" if stage is None else f"has version {stage.VERSION}"
        raise CannotRedoError(
            f"made by version {manifest.stage_version} of the stage {manifest.stage}, and this release {here}: it "
            "cannot be made again with this one"
        )
    found: dict[str, Artifact] = {}
    for role, item in graph.inputs(artifact).items():
        if item is None:
            raise CannotRedoError(f"its input '{role}' is not in the run any more")
        if (stone := tombstone_of(item.path)) is not None:
            raise CannotRedoError(f"its input '{role}' was {stone}")
        found[role] = item
    where = root or Path(manifest.provenance.get("root") or ".")
    inputs = Inputs(found, manifest.payload["params"], where)
    return Recorded(artifact, stage, inputs, _recipe(stage, manifest.payload["recipe"], document))


def _recipe(stage: Stage, part: Mapping[str, Any], document: Mapping[str, Any]) -> Recipe:
    """The run's recipe with the part that the job's key holds in it."""
    for candidate in (dict(document), _with_part(stage.NAME, part, document)):
        try:
            recipe = Recipe.model_validate(candidate)
        except ValidationError:
            continue
        if stage.recipe_slice(recipe) == part:
            return recipe
    raise CannotRedoError("made with another recipe than run.json has, which cannot be put together from its key")


def _with_part(name: str, part: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    if name == group.NAME:
        over: dict[str, Any] = {
            "seed": part["seed"],
            "group": part["group"],
            "rollout": {"rollouts": part["k"]},
            "train": {"balance": part["balance"]},
            "model": {"context": part["context"]},
        }
    elif name == examples.NAME:
        over = {"examples": dict(part)}
    else:
        over = dict(part)
        if name == train.NAME:  # its key has the base's name alone; the document knows where it lies
            over = {**over, "model": {key: value for key, value in part["model"].items() if key != "base"}}
    return merge(dict(document), over)
