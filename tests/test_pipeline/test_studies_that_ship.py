"""The studies that ship are valid to their last recipe, and their rows differ in what they say they compare."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.study.runs import plan_runs
from pipeline.study.spec import read_study
from pipeline.study.strategies import title_of

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


def test_the_readme_shows_what_the_study_found() -> None:
    root = STUDIES[0].parents[2]
    found = json.loads((root / "data" / "baselines" / "study.json").read_text())
    readme = (root / "README.md").read_text()
    shown = [line for line in readme.partition("add up?\n")[2].partition("\n![")[0].splitlines() if line[:2] == "| "][
        1:
    ]
    assert found["complete"]
    assert len(found["seeds"]) >= 5
    for line, strategy in zip(shown, found["strategies"], strict=True):
        cells = [cell for cell in found["cells"] if cell["strategy"] == strategy]
        assert line.startswith(f"| {title_of(strategy)} |")
        assert len(cells) == 3
        for cell in cells:
            ends = "" if cell["low"] is None else f" [{cell['low']:.3f}, {cell['high']:.3f}]"
            assert f"| {cell['estimate']:.3f}{ends} |" in line
    text = " ".join(readme.split())
    for task, strategy, other in (
        ("mean", "prompts+mmgrpo", "prompts"),
        ("mean", "prompts+mmgrpo", "mmgrpo"),
        ("banking77_8", "mmgrpo", "vanilla"),
        ("banking77_8", "prompts+mmgrpo", "mmgrpo"),
        ("banking77_8", "rejection", "mmgrpo"),
        ("multihop", "prompts", "vanilla"),
        ("multihop", "prompts+mmgrpo", "prompts"),
    ):
        place = (task, strategy, other)
        said = next(item for item in found["differences"] if (item["task"], item["strategy"], item["other"]) == place)
        low, middle, high = (
            f"{said['interval'][name]:+.3f}".replace("-", "\u2212") for name in ("low", "estimate", "high")
        )
        assert f"{middle} [{low}, {high}]" in text
