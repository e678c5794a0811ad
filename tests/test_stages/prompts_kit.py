"""What tests of the prompts stage share: a DSPy program of two modules, a scripted engine, and a folder to run in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.parquet import read_rows
from schemas.prompts import TRIALS
from schemas.recipe import Recipe
from stages import prompts
from stages.engines.interface import Request
from tests.test_stages.programs_kit import Bench, CharEngine, FolderOut, recipe_of

PROGRAM = """
import dspy
from stages.programs.plain_adapter import PlainAdapter

class Two(dspy.Module):
    \"\"\"The source of Two.\"\"\"

    def __init__(self):
        super().__init__()
        self.adapter = PlainAdapter()
        self.think = dspy.Predict("x -> thought")
        self.say = dspy.Predict("thought -> y")

    def forward(self, x):
        return self.say(thought=self.think(x=x).thought)

def program():
    return Two()

def metric(example, output, calls):
    assert len(calls) >= 2
    return float(output.y == example.y)
"""
PLAIN = """
def program():
    return lambda inputs, call: call("m", [{"role": "user", "content": inputs["x"]}]).text

def metric(example, output, calls):
    return 1.0
"""
MODEL = {"base": "tiny-random", "dtype": "float32", "context": 100_000}


def answer(prompt: str, request: Request) -> str:
    """Instructions where they are asked for; a note of any number; of a note its number, seldom without help."""
    *before, last = prompt.strip().splitlines()
    digits = "".join(character for character in last if character.isdigit())
    if last.startswith("train"):
        return f"note {digits}"
    if last.startswith("note"):
        helped = len(before) > 1 or "way 3" in prompt or request.seed % 4 == 0
        return digits if helped else "nothing"
    return f"Say it in way {request.seed % 5}."


def bench(
    folder: Path, monkeypatch: pytest.MonkeyPatch, engine: Any = None, source: str = PROGRAM, n: int = 12
) -> Bench:
    """A folder with the program and examples; `prog.py` is the program's module."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prog.py").write_text(source)
    made = Bench(folder, engine or CharEngine(answer), monkeypatch)
    made.examples(train=n, dev=2)
    return made


def recipe(**section: Any) -> Recipe:
    """A small recipe with an optimizer."""
    fields = {
        "optimizer": "mipro",
        "trials": 4,
        "demo_candidates": 4,
        "instruction_candidates": 2,
        "sampling": {"temperature": 1.0, "max_new_tokens": 16},
        **section,
    }
    examples = {"path": "examples.parquet", "inputs": ["x"], "labels": ["y"]}
    return recipe_of(prompts=fields, examples=examples, model=MODEL)


def optimize(made: Bench, chosen: Recipe, out: FolderOut, **params: Any) -> dict[str, Any]:
    """Run the stage; returns its metrics."""
    return made.run(prompts, chosen, out, **{"iteration": 0, **params})


def trials(out: FolderOut) -> list[dict[str, Any]]:
    """The rows of the trials table."""
    return read_rows(out.folder / "trials.parquet", TRIALS)


def files(out: FolderOut) -> dict[str, bytes]:
    """What counts of an artifact: its files without the telemetry."""
    return {name: path.read_bytes() for name, path in out.committed().items() if not name.startswith("telemetry/")}
