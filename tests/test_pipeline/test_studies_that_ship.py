"""The studies that ship are valid to their last recipe, and their rows differ in what they say they compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.study.runs import plan_runs
from pipeline.study.spec import read_study

STUDIES = sorted((Path(__file__).resolve().parents[2] / "data" / "study").glob("*.toml"))


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_run_of_a_study_has_a_recipe_of_its_own(file: Path, tmp_path: Path) -> None:
    study = read_study(file)
    runs = plan_runs(study, file.parent, tmp_path, [])
    assert len(runs) == len(study.seeds) * len(study.tasks) * len(study.strategies)
    recipes = [run.loaded.recipe.model_dump_json() for run in runs]
    assert len(set(recipes)) == len(recipes)


def test_the_comparison_of_iterations_gives_schedules_the_length_of_the_run() -> None:
    file = next(file for file in STUDIES if file.stem == "iterations")
    for run in plan_runs(read_study(file), file.parent, Path("unused"), []):
        recipe = run.loaded.recipe
        steps = recipe.run.iterations * -(-recipe.rollout.examples // recipe.train.examples_per_step)
        assert recipe.train.total_steps in (None, steps)
