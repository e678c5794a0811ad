"""What the end-to-end tests share: running the command line, and small recipes of a user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.cli import main
from pipeline.runfile import RunFile, read_run
from pipeline.store import Store
from stages.contract import Artifact

ROOT = Path(__file__).resolve().parent.parent.parent
TINY = ROOT / "data" / "tiny" / "recipe.toml"

PROGRAM = """
from schemas.errors import ParseError

def parse(text):
    if not any(c.isalpha() for c in text):
        raise ParseError([], ["letter"])
    return text

def program():
    def run(inputs, call):
        return call("write", [{"role": "user", "content": inputs["word"]}], parse=parse, retries=0).value
    return run

def metric(example, output, calls):
    return sum(c.islower() for c in output) / len(output)
"""


def recipe_head(context: int, more: str = "") -> str:
    """The sections of a recipe that every test needs: the tiny model, the program, the examples. `more`: of these."""
    return f"""
name = "own"
[model]
base = "tiny-random"
dtype = "float32"
context = {context}
[program]
factory = "my_program:program"
metric = "my_program:metric"
[examples]
path = "examples.csv"
inputs = ["word"]
{more}"""


RECIPE = (
    recipe_head(128)
    + """
[rollout]
examples = 4
rollouts = 4
sampling = { max_new_tokens = 8 }
[adapter]
r = 2
[train]
learning_rate = 1e-3
precision = "float32"
[evaluate]
sampling = { max_new_tokens = 8 }
parse_retries = 0
bootstrap = 200
"""
)

EXAMPLES = "word,split\n" + "".join(f"w{i},{'train' if i < 6 else 'dev'}\n" for i in range(10))


def own_recipe(folder: Path, *, program: str = PROGRAM, recipe: str = RECIPE, examples: str = EXAMPLES) -> Path:
    """A user's folder with a program, examples and a recipe. The module's name is the folder's, so that it is fresh."""
    folder.mkdir(parents=True, exist_ok=True)
    module = f"program_of_{folder.parent.name}_{folder.name}".replace("-", "_")
    (folder / f"{module}.py").write_text(program)
    (folder / "examples.csv").write_text(examples)
    (folder / "recipe.toml").write_text(recipe.replace("my_program", module))
    return folder / "recipe.toml"


def mmgrpo(*arguments: str | Path) -> int:
    """Run the command line in this process. Returns its exit code."""
    return main([str(argument) for argument in arguments])


def run(recipe: Path, folder: Path, *options: str) -> int:
    """`mmgrpo run` without progress."""
    return mmgrpo("run", recipe, "--run-dir", folder, "--exec", "progress=off", *options)


def state(folder: Path) -> RunFile:
    """The run file."""
    return read_run(folder)


def artifact(folder: Path, stage: str, iteration: int = 0) -> Artifact:
    """An artifact of an iteration, as run.json names it."""
    return Store(folder / "artifacts").open(stage, state(folder).iterations[iteration][stage])


def keys(folder: Path) -> dict[str, Any]:
    """All keys that run.json names."""
    document: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return {name: document[name] for name in ("setup", "iterations", "evaluations", "policies")}
