"""A study of three strategies over two seeds, killed and resumed, as a user would see it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any
from xml.etree import ElementTree as ET

import polars as pl
import pytest

from pipeline.store import Store
from tests.test_e2e.kit import RECIPE, ROOT, mmgrpo, own_recipe, state

EXAMPLES = "word,split\n" + "".join(f"w{i},{['train', 'dev', 'test'][i % 3]}\n" for i in range(15))
STUDY = """
name = "small"
seeds = [0, 1]
set = ["run.evaluate_every=9", "rollout.rollouts=3", "evaluate.sampling.temperature=0.9"]

[[tasks]]
name = "one"
recipe = "a/recipe.toml"

[[strategies]]
name = "base"
set = ["run.iterations=0"]

[[strategies]]
name = "short"
set = ["run.iterations=1"]

[[strategies]]
name = "fast"
set = ["run.iterations=1", "train.learning_rate=0.05"]
"""
BASE_ONLY = STUDY[: STUDY.index('[[strategies]]\nname = "short"')]
"""Nothing to train."""
TASK_TWO = """
[[tasks]]
name = "two"
recipe = "b/recipe.toml"
set = ["evaluate.sampling.max_new_tokens=6"]

"""
KILLED = """
import os, signal, sys
from pipeline.cli import main
from pipeline.run import Runner
make, left = Runner._make, int(sys.argv[1])
def counted(runner, job, key):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return make(runner, job, key)
Runner._make = counted
sys.exit(main(sys.argv[2:]))
"""


def make_study(folder: Path, text: str = STUDY) -> Path:
    own_recipe(folder / "a", recipe=RECIPE.replace('inputs = ["word"]', 'inputs = ["word"]\ntest = "test"'))
    (folder / "a" / "examples.csv").write_text(EXAMPLES)
    (folder / "study.toml").write_text(text)
    return folder / "study.toml"


def study(path: Path, folder: Path, *options: str) -> int:
    return mmgrpo("study", path, "--study-dir", folder, "--exec", "progress=off", *options)


def made(folder: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    for stage, _ in Store(folder / "artifacts").all():
        counts[stage] = counts.get(stage, 0) + 1
    return counts


def numbers(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "study.json").read_text())
    return found


def score_by_hand(run_folder: Path) -> float:
    """The mean test score of what a run ends with, from the scores table."""
    run = state(run_folder)
    key = run.evaluations["test"][run.policies[-1]]
    table = pl.read_parquet(Store(run_folder / "artifacts").open("evaluate", key).file("scores.parquet"))
    return float(table["score"].fill_null(0.0).mean() or 0.0)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    path = make_study(folder)
    assert study(path, folder / "out") == 0
    return folder


def test_what_runs_have_in_common_is_made_once(done: Path) -> None:
    counts = made(done / "out")
    assert counts["base"] == counts["examples"] == counts["program"] == 1
    assert counts["rollout"] == counts["group"] == 2  # a seed: both strategies train on the same
    assert counts["train"] == 2 * 2
    assert counts["evaluate"] == 2 * 2 * 3  # base, short and fast, on dev and test
    assert mmgrpo("verify", done / "out" / "runs" / "one" / "fast" / "seed-1") == 0


def test_the_table_is_what_a_hand_computes_from_the_scores(done: Path) -> None:
    found = numbers(done / "out")
    cells = {(cell["strategy"], cell["task"]): cell for cell in found["cells"]}
    scores = [score_by_hand(done / "out" / "runs" / "one" / "fast" / f"seed-{seed}") for seed in (0, 1)]
    cell = cells["fast", "one"]
    assert cell["estimate"] == pytest.approx(mean(scores))
    assert cell["high"] - cell["estimate"] == pytest.approx(12.7062 * abs(scores[0] - scores[1]) / 2, rel=1e-4)
    of = {(item["task"], item["strategy"], item["other"]): item["interval"] for item in found["differences"]}
    assert of["one", "fast", "base"]["estimate"] == pytest.approx(
        cells["fast", "one"]["estimate"] - cells["base", "one"]["estimate"]
    )


def test_costs_grow_with_what_is_done_and_scoring_is_not_among_them(done: Path) -> None:
    found = numbers(done / "out")
    costs = {(cost["strategy"], cost["task"]): cost for cost in found["costs"]}
    assert costs["base", "one"] == {
        "strategy": "base", "task": "one", "core_seconds": 0, "seconds": 0, "sampled_tokens": 0, "trained_tokens": 0,
        "gpu_seconds": 0, "money": 0,
    }  # fmt: skip
    for name in ("core_seconds", "seconds", "sampled_tokens", "trained_tokens"):
        assert costs["fast", "one"][name] > 0
    assert costs["short", "one"]["sampled_tokens"] == costs["fast", "one"]["sampled_tokens"]
    assert found["totals"]["seconds"] > costs["fast", "one"]["seconds"]


def test_the_page_the_text_and_the_picture_say_the_same(done: Path) -> None:
    text = (done / "out" / "study.md").read_text()
    page = (done / "out" / "study.html").read_text()
    [cell] = [c for c in numbers(done / "out")["cells"] if (c["strategy"], c["task"]) == ("fast", "one")]
    assert f"{cell['estimate']:.3f}" in text
    assert f"{cell['estimate']:.3f}" in page
    picture = ET.parse(done / "out" / "study.svg").getroot()
    dots = [item for item in picture.iter() if item.get("class") == "dot"]
    assert len(dots) == 3


def test_a_finished_study_is_up_to_date_and_its_files_stay_as_they_are(
    done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("study.md", "study.json", "study.svg", "study.html")
    before = [(done / "out" / name).read_bytes() for name in names]
    counts = made(done / "out")
    assert mmgrpo("study", done / "study.toml", "--study-dir", done / "out", "--exec", "progress=plain") == 0
    captured = capsys.readouterr()
    assert captured.err.count("up to date") == 6
    assert "| fast" in captured.out
    assert made(done / "out") == counts
    assert [(done / "out" / name).read_bytes() for name in names] == before


def test_a_study_that_is_killed_goes_on_and_says_what_an_undisturbed_one_says(done: Path, tmp_path: Path) -> None:
    path = make_study(tmp_path, STUDY.replace("seeds = [0, 1]", "seeds = [0]"))
    folder = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, "7", "study", str(path), "--study-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    assert sum(made(folder).values()) == 7
    assert numbers(folder)["complete"] is False
    assert study(path, folder) == 0
    assert numbers(folder)["complete"] is True
    undisturbed = [run for run in numbers(done / "out")["runs"] if (run["task"], run["seed"]) == ("one", 0)]
    assert list(map(told, numbers(folder)["runs"])) == list(map(told, undisturbed))


def told(run: dict[str, Any]) -> dict[str, Any]:
    """What a run says, without times."""
    return {name: value for name, value in run.items() if name not in {"cost", "key"}}


def test_a_run_that_fails_is_told_and_the_others_are_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing = '[[strategies]]\nname = "lost"\nset = ["run.iterations=0", "examples.dev=nowhere"]\n'
    path = make_study(tmp_path, BASE_ONLY.replace("[[strategies]]", f"{failing}\n[[strategies]]"))
    assert study(path, tmp_path / "out") == 4
    out = capsys.readouterr().out
    assert "Failed: one · lost · seed 0" in out
    assert "nowhere" in out
    found = numbers(tmp_path / "out")
    assert len(found["failures"]) == 2
    assert {run["strategy"] for run in found["runs"]} == {"base"}


def test_a_run_folder_with_artifacts_of_its_own_is_not_mixed_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_study(tmp_path, BASE_ONLY)
    for seed in (0, 1):
        (tmp_path / "out" / "runs" / "one" / "base" / f"seed-{seed}" / "artifacts").mkdir(parents=True)
    assert study(path, tmp_path / "out") == 4
    assert "Move the run folder away" in capsys.readouterr().out


def test_tasks_of_two_folders_have_a_column_each_and_one_for_their_mean(tmp_path: Path) -> None:
    path = make_study(tmp_path, BASE_ONLY.replace("[[strategies]]", f"{TASK_TWO}[[strategies]]"))
    (tmp_path / "a").rename(tmp_path / "b")
    make_study(tmp_path, path.read_text())
    assert study(path, tmp_path / "out") == 0
    cells = {cell["task"]: cell["estimate"] for cell in numbers(tmp_path / "out")["cells"]}
    by_hand = {
        task: mean(score_by_hand(tmp_path / "out" / "runs" / task / "base" / f"seed-{seed}") for seed in (0, 1))
        for task in ("one", "two")
    }
    assert cells == pytest.approx({**by_hand, "mean": mean(by_hand.values())})
    assert by_hand["one"] != by_hand["two"]


def test_seeds_that_share_one_evaluation_get_no_interval(tmp_path: Path) -> None:
    path = make_study(tmp_path, BASE_ONLY.replace('set = ["run.ev', 'set = ["evaluate.seed=0", "run.ev'))
    assert study(path, tmp_path / "out") == 0
    [cell] = numbers(tmp_path / "out")["cells"]
    assert (cell["shared"], cell["n"], cell["low"]) == (True, 2, None)
    assert made(tmp_path / "out")["evaluate"] == 2  # dev and test


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("seeds = [0, 1]", "seeds = []"), "seeds"),
        (("seeds = [0, 1]", "seeds = [1, 1]"), "seeds: 1 stands there more than once"),
        (
            ("[[strategies]]", TASK_TWO.replace("two", "one") + "[[strategies]]"),
            "tasks: one stands there more than once",
        ),
        (('name = "short"', 'name = "fast"'), "strategies: fast stands there more than once"),
        (('name = "one"', 'name = "../one"'), "tasks.0.name"),
        (("a/recipe.toml", "b/recipe.toml"), "task 'one', strategy 'base'"),
        (('set = ["run.iterations=1"]', 'set = ["run.iteration=1"]'), "did you mean 'iterations'"),
        (('set = ["run.iterations=1"]', 'like = "mmgrp"'), "did you mean 'mmgrpo'"),
        (('set = ["run.iterations=1"]', 'like = "mmgrpo@papr"'), "no preset 'papr'"),
        (('set = ["run.iterations=1"]', ""), "has neither `like`"),
        (('name = "small"', 'name = "small"\nsplits = "dev"'), "did you mean 'split'"),
        (('name = "small"', 'name = "small"\nsplit = "train"'), "split"),
        (('set = ["run.iterations=0"]', 'set = ["run.iterations=0", "program.metric=nowhere:f"]'), "strategy 'base'"),
    ],
)
def test_a_bad_study_file_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], said: str
) -> None:
    text = STUDY.replace(*change, 1)
    assert text != STUDY
    path = make_study(tmp_path, text)
    assert study(path, tmp_path / "out") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_recipe_without_a_test_split_is_refused_unless_dev_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_study(tmp_path, BASE_ONLY)
    recipe = tmp_path / "a" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('test = "test"\n', ""))
    assert study(path, tmp_path / "out") == 2
    assert "names no test split" in capsys.readouterr().err
    path.write_text(path.read_text().replace('name = "small"', 'name = "small"\nsplit = "dev"'))
    assert study(path, tmp_path / "out") == 0
    assert "Score on the dev split" in capsys.readouterr().out
