"""What a study makes of its results: intervals, the table, the Pareto front, the words and the picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from pipeline.costing import Spent
from pipeline.study.intervals import seed_interval, t_quantile
from pipeline.study.page import as_json, write_study
from pipeline.study.picture import pareto_picture
from pipeline.study.results import Cost, Failure, Outcome, Result
from pipeline.study.runs import plan_runs
from pipeline.study.spec import Study, read_study
from pipeline.study.strategies import BUILT_IN, settings_of, title_of
from pipeline.study.table import Table, make_table, pareto_front
from schemas.errors import RecipeError

ROOT = Path(__file__).parents[2]
SCORES = {
    ("vanilla", "a"): [0.4, 0.4, 0.4],
    ("mmgrpo", "a"): [0.5, 0.6, 0.7],
    ("vanilla", "b"): [0.2, 0.3, 0.4],
    ("mmgrpo", "b"): [0.2, 0.5, 0.5],
}
COSTS = {"vanilla": Cost(0, 0, 0, 0), "mmgrpo": Cost(100, 60, 5000, 900)}
STUDY = Study.model_validate(
    {
        "name": "s",
        "seeds": [0, 1, 2],
        "tasks": [{"name": "a", "recipe": "a.toml"}, {"name": "b", "recipe": "b.toml"}],
        "strategies": ["vanilla", "mmgrpo"],
    }
)


def result(strategy: str, task: str, seed: int, score: float, **changes: Any) -> Result:
    given: dict[str, Any] = {
        "examples": 50,
        "failed": 0,
        "iterations": 2,
        "key": f"{strategy}{task}{seed}",
        "cost": COSTS[strategy],
        "entries": (),
    }
    return Result(task, strategy, seed, score, **{**given, **changes})


def table(*outcomes: Outcome) -> Table:
    made = [
        result(strategy, task, seed, score)
        for (strategy, task), scores in SCORES.items()
        for seed, score in enumerate(scores)
    ]
    return make_table(STUDY, outcomes or made, Spent(core_seconds=200.0, seconds=120.0))


@pytest.mark.parametrize(
    ("freedom", "level", "expected"),
    [
        (1, 0.95, 12.7062),
        (2, 0.95, 4.3027),
        (4, 0.95, 2.7764),
        (9, 0.99, 3.2498),
        (30, 0.9, 1.6973),
        (500, 0.95, 1.9647),
    ],
)
def test_t_quantiles_are_those_of_the_tables(freedom: int, level: float, expected: float):
    assert t_quantile(freedom, level) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("call", [(0, 0.95), (3, 0.0), (3, 1.0)])
def test_a_t_quantile_that_is_none_is_refused(call: tuple[int, float]):
    with pytest.raises(ValueError, match="degree of freedom"):
        t_quantile(*call)


def test_an_interval_over_seeds_covers_as_often_as_it_says():
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(1000):
        interval = seed_interval(list(generator.normal(3.0, 2.0, 5)))
        assert interval.low is not None
        assert interval.high is not None
        hits += interval.low <= 3.0 <= interval.high
    assert hits == pytest.approx(950, abs=21)  # three standard deviations


def test_one_seed_has_no_interval_and_no_values_are_refused():
    assert seed_interval([0.5]).low is None
    with pytest.raises(ValueError, match="finite"):
        seed_interval([])
    with pytest.raises(ValueError, match="finite"):
        seed_interval([0.1, float("nan")])


def test_cells_are_means_over_seeds_with_t_intervals():
    cell = table().cells["mmgrpo", "a"]
    assert cell.interval.estimate == pytest.approx(0.6)
    assert cell.interval.high == pytest.approx(0.6 + 4.30265 * 0.1 / 3**0.5, abs=1e-5)


def test_the_mean_column_is_over_tasks_first_and_then_over_seeds():
    cell = table().cells["mmgrpo", "mean"]
    per_seed = np.array([0.35, 0.55, 0.6])
    assert cell.interval.estimate == pytest.approx(per_seed.mean())
    assert cell.interval.low == pytest.approx(per_seed.mean() - 4.30265 * per_seed.std(ddof=1) / 3**0.5, abs=1e-5)


def test_differences_are_taken_seed_by_seed():
    found = {(item.task, item.strategy, item.other): item.interval for item in table().differences}
    interval = found["b", "mmgrpo", "vanilla"]
    assert interval.estimate == pytest.approx(0.1)
    assert interval.low == pytest.approx(0.1 - 4.30265 * 0.1 / 3**0.5, abs=1e-5)
    assert set(found) == {(column, "mmgrpo", "vanilla") for column in ("a", "b", "mean")}


def test_a_seed_that_lacks_a_task_is_not_in_the_mean_and_the_cell_says_how_many_there_are():
    made = [result("vanilla", "a", 0, 0.5), result("vanilla", "a", 1, 0.7), result("vanilla", "b", 1, 0.1)]
    found = table(*made, Failure("b", "vanilla", 0, "no space\nleft"))
    assert found.cells["vanilla", "mean"].interval.estimate == pytest.approx(0.4)
    assert ("mmgrpo", "a") not in found.cells
    assert not found.complete
    text = "\n".join(["", *map(str, as_json(found)["failures"])])
    assert "no space" in text


def test_seeds_with_one_evaluation_have_no_interval_also_in_the_mean():
    made = [result("vanilla", task, seed, 0.5, key=task) for task in ("a", "b") for seed in (0, 1, 2)]
    found = table(*made)
    for column in ("a", "b", "mean"):
        cell = found.cells["vanilla", column]
        assert (cell.shared, cell.interval.low, cell.interval.n) == (True, None, 3)


def test_a_cost_that_a_run_does_not_know_makes_the_mean_unknown():
    made = [result("vanilla", "a", 0, 0.5), result("vanilla", "a", 1, 0.5, cost=Cost(None, 2, 3, 4))]
    assert table(*made).costs["vanilla", "a"] == Cost(None, 1, 1.5, 2)


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ({"a": (0, 0.4), "b": (10, 0.6), "c": (20, 0.5)}, ["a", "b"]),
        ({"a": (0, 0.4), "b": (10, 0.4)}, ["a"]),
        ({"b": (5, 0.4), "a": (5, 0.4)}, ["a", "b"]),
        ({"a": (5, 0.4), "b": (5, 0.5)}, ["b"]),
        ({}, []),
    ],
)
def test_the_front_is_what_no_other_beats(points: dict[str, tuple[float, float]], front: list[str]):
    assert pareto_front(points) == front


def test_the_picture_has_a_panel_a_task_and_a_dot_a_strategy():
    root = ET.fromstring(pareto_picture(table(), gpu=False))
    dots = [item for item in root.iter() if item.get("class") == "dot"]
    texts = [item.text for item in root.iter() if item.tag.endswith("text")]
    assert len(dots) == 4
    assert {"vanilla", "mmGRPO only", "a, test score", "b, test score"} <= set(texts)
    assert any("core-seconds" in str(text) for text in texts)
    assert "GPU-seconds" in pareto_picture(table(), gpu=True)


def test_the_picture_of_nothing_says_so():
    assert "nothing finished yet" in pareto_picture(table(Failure("a", "vanilla", 0, "x")), gpu=False)


def test_the_files_of_equal_tables_are_equal(tmp_path: Path):
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
        text = write_study(table(), folder, gpu=False)
        assert "| mmGRPO only | 0.600 [0.352, 0.848] |" in text
    assert [path.name for path in sorted(first.iterdir())] == ["study.html", "study.json", "study.md", "study.svg"]
    assert all(path.read_bytes() == (second / path.name).read_bytes() for path in first.iterdir())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vanilla", ["run.iterations=0", "prompts.optimizer=none", "rejection.iterations=0"]),
        ("prompts", ["run.iterations=0", "prompts.optimizer=gepa", "rejection.iterations=0"]),
        ("prompts+mmgrpo@unbiased", ["prompts.optimizer=gepa", "rejection.iterations=0", "preset=unbiased"]),
        ("rejection", ["prompts.optimizer=none", "rejection.iterations=7"]),
    ],
)
def test_a_built_in_strategy_is_its_settings(name: str, expected: list[str]):
    assert settings_of(name, "gepa", 7) == expected


def test_every_built_in_strategy_has_a_title():
    assert all(title_of(name) for name in BUILT_IN)
    assert title_of("mmgrpo@unbiased") == "mmGRPO only (unbiased)"
    assert title_of("mine") == "mine"


def write(folder: Path, text: str) -> Path:
    (folder / "study.toml").write_text(text)
    return folder / "study.toml"


def test_settings_lie_over_each_other_study_task_command_strategy(tmp_path: Path):
    text = (
        'name = "s"\nseeds = [4, 5]\nset = ["run.iterations=5", "rollout.examples=3", "rollout.rollouts=4"]\n'
        f'[[tasks]]\nname = "t"\nrecipe = "{ROOT}/data/tiny/recipe.toml"\nset = ["rollout.examples=2"]\n'
        '[[strategies]]\nname = "x"\nset = ["train.learning_rate=0.5"]\n'
        '[[strategies]]\nname = "none"\nset = ["run.iterations=0"]\n'
    )
    study = read_study(write(tmp_path, text))
    runs = plan_runs(study, tmp_path, tmp_path / "out", ["rollout.rollouts=6", "run.iterations=9"])
    assert [(run.strategy, run.seed) for run in runs] == [("x", 4), ("none", 4), ("x", 5), ("none", 5)]
    recipe = runs[2].loaded.recipe
    assert (recipe.seed, recipe.run.iterations, recipe.rollout.examples, recipe.rollout.rollouts) == (5, 9, 2, 6)
    assert recipe.train.learning_rate == 0.5
    assert runs[1].loaded.recipe.run.iterations == 0


def test_a_study_file_that_is_no_study_is_refused(tmp_path: Path):
    with pytest.raises(RecipeError, match="tasks: required, but missing"):
        read_study(write(tmp_path, 'name = "s"\nseeds = [1]\nstrategies = ["vanilla"]\n'))
    with pytest.raises(RecipeError, match="did you mean 'vanilla'"):
        read_study(write(tmp_path, 'name = "s"\nseeds = [1]\nstrategies = ["vanila"]\ntasks = []\n'))
    with pytest.raises(RecipeError, match="is not TOML"):
        read_study(write(tmp_path, "name ="))


def test_scores_of_different_engines_are_marked(tmp_path: Path) -> None:
    alike = [result("vanilla", "a", seed, 0.5, engines=("ours",)) for seed in range(3)]
    unknown = [result("mmgrpo", "a", 0, 0.6)]
    assert "engines" not in write_study(table(*alike, *unknown), tmp_path, gpu=False)
    other = [result("mmgrpo", "a", seed, 0.6, engines=("theirs",)) for seed in range(3)]
    said = "Scores of a were sampled by different engines, which alone may move them: ours, theirs."
    assert said in write_study(table(*alike, *other), tmp_path, gpu=False)
    assert said in (tmp_path / "study.html").read_text()
