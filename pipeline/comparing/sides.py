"""The two runs of a comparison: what run.json names, in the order in which it came to be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline import runfile
from pipeline.jobs import stage_of
from pipeline.runfile import ORDER, SETUP, RunFile
from pipeline.store import Store
from schemas.recipe import Recipe
from stages.contract import Artifact


@dataclass(frozen=True)
class Side:
    """One of the runs."""

    folder: Path
    run: RunFile
    recipe: Recipe
    artifacts: dict[str, Artifact]
    """By what a person calls them, in order."""

    def setup(self, stage: str) -> Artifact | None:
        """What the whole run shares of a stage."""
        return self.artifacts.get(stage)


def open_side(folder: Path) -> Side:
    """A run folder.

    Raises:
        DataError: when run.json or a manifest is damaged, or an artifact that it names is gone.
    """
    run = runfile.read_run(folder)
    store = Store(folder / "artifacts")
    names = _names(run)
    return Side(
        folder,
        run,
        runfile.resolved(folder, run),
        {name: store.open(stage, key) for name, (stage, key) in names.items()},
    )


def _names(run: RunFile) -> dict[str, tuple[str, str]]:
    """(stage, key) of everything that run.json names, by what a person calls it, in order."""
    found = {name: (name, run.setup[name]) for name in SETUP if name in run.setup}
    found |= _scored(run, 0)
    for index, stages in enumerate(run.iterations):
        for name in sorted(stages, key=lambda name: (ORDER.index(stage_of(name)), name)):
            found[f"iteration {index} · {name}"] = (stage_of(name), stages[name])
        found |= _scored(run, index + 1)
    return found


def _scored(run: RunFile, index: int) -> dict[str, tuple[str, str]]:
    """Scores and drift of the policy at a place of the chain, unless it is the one before it."""
    if index >= len(run.policies) or run.policies[index] in run.policies[:index]:
        return {}
    after = f"after iteration {index - 1}" if index else "before training"
    found: dict[str, tuple[str, str]] = {}
    for stage, name, splits in (("evaluate", "scores", run.evaluations), ("drift", "drift", run.drifts)):
        keys = ((split, by_policy.get(run.policies[index])) for split, by_policy in sorted(splits.items()))
        found |= {f"{name} on {split} {after}": (stage, key) for split, key in keys if key is not None}
    return found
