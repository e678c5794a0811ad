"""What a run has chosen: how run.json changes when a job is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline import runfile
from pipeline.jobs import OF_POLICIES, Job, stage_of
from pipeline.release.openings import openings
from pipeline.runfile import ORDER, RunFile
from pipeline.teaching import STAGE, role_of
from schemas.errors import DataError
from schemas.recipe import Recipe
from stages.contract import Artifact


def load_state(folder: Path, recipe: Recipe) -> RunFile:
    """The run's state, or a new one for this recipe; the recipe in it is the one at hand."""
    resolved = recipe.model_dump(mode="json")
    if not (folder / runfile.NAME).exists():
        return RunFile(name=recipe.name, recipe=resolved, tests_opened=len(openings(folder)))
    state = runfile.read_run(folder)
    if state.name != recipe.name:
        raise DataError(
            f"{folder} holds the run of recipe '{state.name}', not '{recipe.name}'. Give another folder with --run-dir."
        )
    state = state.model_copy(update={"recipe": resolved})
    state = state if recipe.evaluate.drift else state.model_copy(update={"drifts": {}})
    state = state if recipe.prompts.on else _without(state, "prompts")
    return state if recipe.traces.snapshot else _without(state, "ingest")


def _without(state: RunFile, stage: str) -> RunFile:
    """The state of a run whose recipe asks for prompts, or names a snapshot, no more: what was made with it goes."""
    if stage not in state.setup:
        return state
    setup = {name: key for name, key in state.setup.items() if name != stage}
    return state.model_copy(update={"setup": setup, **_nothing_behind(state, keep=1)})


def _nothing_behind(state: RunFile, *, keep: int) -> dict[str, Any]:
    return {"iterations": (), "policies": state.policies[:keep], **{name: {} for name in OF_POLICIES}}


def chosen(state: RunFile, job: Job, key: str, artifact: Artifact) -> RunFile:
    """The run's state with the job's key in it. When that changes a key, everything behind it is taken out."""
    place, name = job.slot[0], job.slot[-1]
    if job.of_policy:
        by_split: dict[str, dict[str, str]] = getattr(state, place)
        keys = {**by_split.get(job.slot[1], {}), job.params["policy"]: key}
        return state.model_copy(update={place: {**by_split, job.slot[1]: keys}})
    if place == "setup":
        if state.setup.get(name) != key:
            behind = _nothing_behind(state, keep=1 if name == "prompts" else 0)
            state = state.model_copy(update={"setup": {**state.setup, name: key}, **behind})
        if name == "base" and not state.policies:
            state = state.model_copy(update={"policies": (artifact.manifest.metrics["policy"],)})
        return state
    return _chosen_in_iteration(state, job, key, artifact)


def _chosen_in_iteration(state: RunFile, job: Job, key: str, artifact: Artifact) -> RunFile:
    index, name = int(job.slot[1]), job.slot[2]
    stages = dict(state.iterations[index]) if index < len(state.iterations) else {}
    if stages.get(name) != key:
        kept = {other: stages[other] for other in stages if _comes_before(other, name, job, stages)}
        policies = state.policies[: index + 1]
        state = state.model_copy(
            update={
                "iterations": (*state.iterations[:index], {**kept, name: key}),
                "policies": policies,
                **{place: _only(getattr(state, place), policies) for place in OF_POLICIES},
            }
        )
    if name == "train" and len(state.policies) == index + 1:
        policy = artifact.manifest.metrics["policy"] if artifact.manifest.metrics["trained"] else state.policies[-1]
        state = state.model_copy(update={"policies": (*state.policies, policy)})
    return state


def _only(by_split: dict[str, dict[str, str]], policies: tuple[str, ...]) -> dict[str, dict[str, str]]:
    return {
        split: {policy: key for policy, key in keys.items() if policy in policies} for split, keys in by_split.items()
    }


def _comes_before(other: str, name: str, job: Job, stages: dict[str, str]) -> bool:
    """Whether another stage's key stays when this one's changes: it comes before, and is still an input."""
    if name == "train" and stage_of(other) == "logprobs":
        return other in job.artifacts
    if name == "group" and stage_of(other) == STAGE:
        return role_of(other.partition(".")[2]) in job.artifacts
    if name == "rollout" and other == "prompts":
        frozen = job.artifacts.get("prompts")
        return frozen is not None and frozen.manifest.key == stages[other]
    return other != name and ORDER.index(stage_of(other)) <= ORDER.index(stage_of(name))
