"""The runs of a study: one recipe each, in a folder of its own, with the study's artifacts for all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.recipes import LoadedRecipe, load_recipe
from pipeline.runfile import NAME
from pipeline.settle import settle
from pipeline.study.spec import Strategy, Study, Task
from pipeline.study.strategies import settings_of, title_of
from pipeline.walk import identify
from schemas.errors import DataError, RecipeError
from schemas.execution import Execution

ARTIFACTS = "artifacts"


@dataclass(frozen=True)
class PlannedRun:
    """One run: a strategy on a task with a seed."""

    task: str
    strategy: str
    seed: int
    loaded: LoadedRecipe
    folder: Path
    split: str
    """The split that the table is made of."""

    @property
    def label(self) -> str:
        """What a person calls it."""
        return f"{self.task} · {title_of(self.strategy)} · seed {self.seed}"


def plan_runs(study: Study, root: Path, folder: Path, settings: list[str]) -> list[PlannedRun]:
    """Every run of a study, seed by seed, so that a study that is stopped early has whole seeds.

    Args:
        study: as read.
        root: the study file's folder.
        folder: of the study, where results go.
        settings: of the command line, laid over those of study and task, below those of strategies.

    Raises:
        RecipeError: naming the task and the strategy whose recipe is wrong, or the recipe without the wanted split.
    """
    made = _Maker(study, root, folder, settings)
    return [
        made.run(task, strategy, seed) for seed in study.seeds for task in study.tasks for strategy in study.strategies
    ]


@dataclass(frozen=True)
class _Maker:
    study: Study
    root: Path
    folder: Path
    settings: list[str]

    def run(self, task: Task, strategy: Strategy, seed: int) -> PlannedRun:
        try:
            loaded = self._load(task, strategy, seed)
        except RecipeError as error:
            raise RecipeError(f"task '{task.name}', strategy '{strategy.name}': {error}") from None
        examples = loaded.recipe.examples
        split = examples.test if self.study.split == "test" else examples.dev
        if split is None:
            raise RecipeError(
                f"task '{task.name}': {self.root / task.recipe} names no test split (examples.test). Name one, or give "
                'the study split = "dev", the split that training is watched on'
            )
        folder = self.folder / "runs" / task.name / strategy.name / f"seed-{seed}"
        return PlannedRun(task.name, strategy.name, seed, loaded, folder, split)

    def _load(self, task: Task, strategy: Strategy, seed: int) -> LoadedRecipe:
        path, below = self.root / task.recipe, [*self.study.set, *task.set, *self.settings]
        own = [*strategy.set, f"seed={seed}"]
        if strategy.like is not None:
            iterations = load_recipe(path, [*below, *own]).recipe.run.iterations
            own = [*settings_of(strategy.like, self.study.optimizer, iterations), *own]
        return load_recipe(path, [*below, *own])


def settled(runs: list[PlannedRun], execution: Execution) -> tuple[list[PlannedRun], list[str]]:
    """The runs with what their recipes leave to the machine, the same for all of a task, and notes for a person.

    The first run that there is decides, so that a study that goes on elsewhere compares like with like.
    """
    found: list[PlannedRun] = []
    notes: dict[str, None] = {}
    for run in runs:
        others = [other.folder for other in runs if other.task == run.task and (other.folder / NAME).exists()]
        loaded, told = settle(run.loaded, execution, (others or [run.folder])[0])
        found.append(replace(run, loaded=loaded))
        notes |= dict.fromkeys(told)
    return found, list(notes)


def check_runs(runs: list[PlannedRun], cache: str | None) -> None:
    """Look at everything that the runs need, once for each task and strategy, before any of them starts.

    Raises:
        RecipeError: naming the task and the strategy.
    """
    for run in {(run.task, run.strategy): run for run in reversed(runs)}.values():
        try:
            identify(run.loaded.recipe, run.loaded.root, cache)
        except RecipeError as error:
            raise RecipeError(f"task '{run.task}', strategy '{run.strategy}': {error}") from None


def share_artifacts(study_folder: Path, run: PlannedRun) -> None:
    """Make the run's artifacts those of the study: a link from its folder to the one store.

    Artifacts are found by key and made under a lock each, so that any number of runs may share them.

    Raises:
        DataError: when the run's folder has artifacts of its own.
    """
    store, link = study_folder / ARTIFACTS, run.folder / ARTIFACTS
    store.mkdir(parents=True, exist_ok=True)
    run.folder.mkdir(parents=True, exist_ok=True)
    if link.is_symlink() and link.resolve() == store.resolve():
        return
    if link.exists() or link.is_symlink():
        raise DataError(f"{link} is not the link to {store} that it must be in a study. Move the run folder away.")
    link.symlink_to(Path(*[".."] * len(run.folder.relative_to(study_folder).parts)) / ARTIFACTS)
