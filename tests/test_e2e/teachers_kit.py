"""A DSPy program of two modules, a recipe with a student, and teachers for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl

from tests.test_e2e.kit import artifact, own_recipe, recipe_head, run

PROGRAM = """
import dspy
from stages.programs.plain_adapter import PlainAdapter

class Program(dspy.Module):
    def __init__(self, modules=2):
        super().__init__()
        self.adapter = PlainAdapter()
        self.draft = dspy.Predict(dspy.Signature("word -> note", "Write a note."))
        if modules == 2:
            self.polish = dspy.Predict(dspy.Signature("word, note -> answer", "Polish it."))

    def forward(self, word):
        note = self.draft(word=word).note
        return self.polish(word=word, note=note)

def program(modules=2):
    return Program(modules)

def metric(example, output, calls):
    return sum(c.islower() for c in output.answer) / len(output.answer)
"""

RECIPE = (
    recipe_head(512)
    + """
[rollout]
examples = 3
rollouts = 6
parse_retries = 0
sampling = { max_new_tokens = 10 }
[group]
select = "all"
[adapter]
r = 2
[train]
learning_rate = 1e-2
examples_per_step = 8
ess_floor = 0.0
precision = "float32"
[evaluate]
sampling = { max_new_tokens = 8 }
parse_retries = 0
bootstrap = 100
"""
)

DEMO = {"word": "tree", "note": "a tall plant"}


def student_recipe(folder: Path, more: str = "") -> Path:
    """The student's folder, with `more` at the end of its recipe and a saved state with a demo beside it."""
    recipe = own_recipe(folder, program=PROGRAM, recipe=RECIPE + more)
    write_state(folder / "better.json", [DEMO])
    return recipe


def write_state(file: Path, demos: list[dict[str, str]], names: tuple[str, ...] = ("draft", "polish")) -> None:
    """A state as `program.save` writes it: other instructions, and demos for the first module."""
    signatures: dict[str, Any] = {
        "draft": {"instructions": "Write a good note.", "fields": fields("word", "note")},
        "polish": {"instructions": "Polish it well.", "fields": fields("word", "note", "answer")},
    }
    state = {
        name: {"traces": [], "train": [], "demos": demos if name == "draft" else [], "lm": None}
        | {"signature": signatures[name]}
        for name in names
    }
    file.write_text(json.dumps(state))


def fields(*names: str) -> list[dict[str, str]]:
    return [{"prefix": f"{name.capitalize()}:", "description": f"${{{name}}}"} for name in names]


def made_adapter(folder: Path, target: Path) -> None:
    """An adapter on the same base, trained by a short run of the student alone."""
    recipe = student_recipe(folder)
    assert run(recipe, folder / "run") == 0
    shutil.copytree(artifact(folder / "run", "train").file("adapter"), target)


def table(folder: Path, stage: str, name: str, iteration: int = 0) -> pl.DataFrame:
    """A table of an artifact of an iteration."""
    return pl.read_parquet(artifact_of(folder, stage, iteration).file(f"{name}.parquet"))


def artifact_of(folder: Path, stage: str, iteration: int = 0) -> Any:
    """An artifact by its name in run.json: `teacher.NAME` is of the stage `teacher`."""
    from pipeline.store import Store
    from tests.test_e2e.kit import state

    key = state(folder).iterations[iteration][stage]
    return Store(folder / "artifacts").open(stage.partition(".")[0], key)
