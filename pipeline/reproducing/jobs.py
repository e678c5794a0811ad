"""Which jobs of a run are done again, and whether everything that they need is as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.audit.recorded import CannotRedoError, Recorded, recorded
from pipeline.comparing.data import differing
from pipeline.graph import Graph
from pipeline.jobs import stage_of
from pipeline.runfile import ORDER, RunFile
from pipeline.store import Store
from schemas.canonical import digest
from schemas.errors import RecipeError
from schemas.recipe import Recipe
from stages.contract import Artifact

AGAIN = ("group", "logprobs", "train")
"""Stages of an iteration that are functions of what they read. Those that sample are taken over."""


@dataclass(frozen=True)
class Wanted:
    """A job to do again."""

    label: str
    artifact: Artifact


def wanted(run: RunFile, store: Store, iterations: Sequence[int], *, evaluate: bool) -> list[Wanted]:
    """The jobs in order.

    Args:
        run: what run.json says.
        store: the run's.
        iterations: which of them; each with the scores of the policy after it, and the first with those before it.
        evaluate: whether policies are scored again.

    Raises:
        RecipeError: for an iteration that the run does not have.
        DataError: when an artifact is gone.
    """
    if unknown := [index for index in iterations if index >= len(run.iterations)]:
        raise RecipeError(f"the run has no iteration {unknown[0]}: it has {len(run.iterations)}, counted from 0")
    found = []
    for index in sorted(set(iterations)):
        if evaluate and index == 0:
            found += _scored(run, store, 0)
        stages = run.iterations[index]
        for name in sorted(stages, key=lambda name: (ORDER.index(stage_of(name)), name)):
            if stage_of(name) in AGAIN:
                item = store.open(stage_of(name), stages[name])
                found.append(Wanted(f"iteration {index} · {name}", item))
        found += _scored(run, store, index + 1) if evaluate else []
    return found


def _scored(run: RunFile, store: Store, index: int) -> list[Wanted]:
    if index >= len(run.policies) or run.policies[index] in run.policies[:index]:
        return []
    where = f"after iteration {index - 1}" if index else "before training"
    keys = {split: scores.get(run.policies[index]) for split, scores in sorted(run.evaluations.items())}
    return [Wanted(f"evaluate {split} {where}", store.open("evaluate", key)) for split, key in keys.items() if key]


def job_of(item: Wanted, graph: Graph, run: RunFile, root: Path) -> Recorded:
    """The job of an artifact, with the inputs that were taken over.

    Raises:
        RecipeError: when this release cannot do it again.
    """
    try:
        return recorded(item.artifact, graph, run.recipe, root)
    except CannotRedoError as error:
        code = item.artifact.manifest.provenance.get("code") or {}
        commit = code.get("commit")
        hint = f" Check out mmgrpo at commit {commit[:12]}, which made it, and type the same." if commit else ""
        raise RecipeError(f"{item.label}: {error}.{hint}") from None


def with_adapter(job: Recorded, trained: Artifact) -> Recorded:
    """The job that scores a policy, for the adapter that was made again."""
    policy = trained.manifest.metrics["policy"]
    manifest = job.artifact.manifest
    params = {**manifest.payload["params"], "policy": policy}
    payload = manifest.payload | {"params": params, "inputs": {**manifest.payload["inputs"], "adapter": policy}}
    moved = manifest.model_copy(update={"payload": payload, "key": digest(payload)})
    inputs = replace(job.inputs, artifacts={**job.inputs.artifacts, "adapter": trained}, params=params)
    return replace(job, artifact=Artifact(job.artifact.path, moved), inputs=inputs)


def refuse_other_code(recipe: Recipe, program: Artifact, root: Path) -> None:
    """Stop where the program is not the one that the run recorded.

    Raises:
        RecipeError: naming the files that changed.
    """
    from stages.programs.load import program_identity

    was = program.manifest.payload["params"]["identity"]
    now = program_identity(recipe, root)
    if was == now:
        return
    lines = [
        f"{name} ({'changed' if all(pair) else 'added' if pair[1] else 'gone'})"
        for kind in ("code", "files")
        for name, pair in differing(was.get(kind, {}), now[kind]).items()
    ]
    others = [name for name in differing(was, now) if name not in ("code", "files")]
    lines += [f"its {name}" for name in others]
    raise RecipeError(
        f"the program in {root} is not the one that the run recorded: {', '.join(lines)}. Restore it as it was (its "
        "version control knows), or name a folder that has it with --root; --no-evaluate does without the program"
    )
