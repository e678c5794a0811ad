"""What goes to other processes: functions by their names, data beside them, no code."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.ingest_steps import Lying, Reading, make_part, read_piece
from pipeline.on_ray.named import OURS, Named, found, named
from pipeline.on_ray.pool import one_by_one
from schemas.errors import StageError
from schemas.execution import Execution
from schemas.rollouts import ROLLOUTS
from schemas.scores import SCORES
from stages.contract import Inputs
from stages.evaluate import _row
from stages.programs.desk import Shape
from stages.programs.jobs import Runs
from stages.programs.load import load_program
from stages.programs.shards import open_session
from stages.programs.shared import Crew, Same, make_runs
from tests.test_stages.programs_kit import recipe_of

RUNS = Runs(program="p", policy="q", source="student", seed=0, iteration=0, draws=(0, "sample", 0))


def crew(shape: Shape, root: Path) -> Crew:
    """As the rollout and evaluate stages make it."""
    recipe, inputs = recipe_of(), Inputs({}, {}, root)
    open_ = partial(open_session, recipe, Execution(), inputs, recipe.rollout.sampling, 2, judge_seed=3)
    return Crew(partial(load_program, recipe, root, None), Same(inputs, recipe), open_, shape, 4)


def test_a_function_comes_back_as_it_was_with_what_it_was_bound_to(tmp_path: Path) -> None:
    shape = Shape(ROLLOUTS, "rollouts", RUNS.row)
    sent = named(crew(shape, tmp_path))
    assert (sent.module, sent.name) == ("stages.programs.shared", "Crew.__call__")
    assert {type(getattr(sent.given[0], name)) for name in ("load", "open_")} == {Named}
    back: Any = found(sent)
    assert back.func is Crew.__call__
    (there,) = back.args
    assert (there.load.func, there.load.args) == (load_program, (recipe_of(), tmp_path, None))
    assert (there.open_.func, there.open_.keywords) == (open_session, {"judge_seed": 3})
    assert isinstance(there.check, Same)
    assert found(named(RUNS.row)).args == (RUNS,)
    step: Any = found(named(partial(one_by_one, read_piece)))
    assert (step.func, step.args[0].func) == (one_by_one, read_piece)
    lying = Lying(tmp_path, frozenset(), redacted=False)
    assert found(named(partial(Reading, lying)))(None).leaves.parent == tmp_path


@pytest.mark.parametrize(
    "asked",
    [
        Named("os", "system"),
        Named("pipeline.on_ray.actor", "os.system"),
        Named("pipeline.on_ray.actor", "import_module"),
        Named("pipeline.on_ray.named", "import_module"),
        Named("pipeline.on_ray.named", "nothing"),
        Named("pipelines", "run"),
        Named("tests.test_pipeline.ray_kit", "square"),
        Named("pipeline.on_ray.pool", "one_by_one", (Named("builtins", "eval"),)),
        Named("pipeline.on_ray.pool", "one_by_one", (), {"step": Named("subprocess", "run")}),
    ],
    ids=lambda asked: f"{asked.module}:{asked.name}",
)
def test_a_worker_calls_what_our_own_packages_define_and_nothing_else(asked: Named) -> None:
    with pytest.raises(StageError, match=r"a worker was asked to call .*; expected what a module of pipeline, schemas"):
        found(asked)


def test_a_function_without_a_name_is_not_sent() -> None:
    with pytest.raises(AssertionError, match="cannot be found by its name"):
        named(lambda task: task)


PAYLOADS = {
    "rollout": lambda root: crew(Shape(ROLLOUTS, "rollouts", RUNS.row), root),
    "evaluate": lambda root: crew(Shape(SCORES, "runs", partial(_row, policy="q"), timed=True), root),
    "runs": lambda root: make_runs,
    "ingest": lambda root: partial(Reading, Lying(root, frozenset(), redacted=False), None),
    "records": lambda root: partial(one_by_one, make_part),
}


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.ray
def test_what_is_sent_holds_no_code(payload: str, tmp_path: Path) -> None:
    """Read as Ray writes it: every name in it is a class of ours, or one of a library that holds data."""
    from ray import cloudpickle

    reader = Reader(cloudpickle.dumps(named(PAYLOADS[payload](tmp_path))))
    assert isinstance(reader.load(), Named)
    names = reader.names
    assert ("pipeline.on_ray.named", "Named") in names
    rays = "ray._private.arrow_serialization"  # how Ray writes Arrow's schemas once it was started in this process
    data = ("builtins", "collections", "copyreg", "functools", "pathlib", "posixpath", "pyarrow.lib", "pydantic", rays)
    assert {name for name in names if not name[0].startswith((*OURS, *data))} == set()
    assert {name for name in names if name[0] == "builtins"} <= {("builtins", "frozenset"), ("builtins", "object")}


class Reader(pickle.Unpickler):
    """Notes (module, name) of all that is looked up."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.names = set[tuple[str, str]]()

    def find_class(self, module: str, name: str) -> Any:
        self.names.add((module, name))
        return super().find_class(module, name)


def test_a_worker_imports_nothing_that_computes_before_it_has_its_settings() -> None:
    heavy = {"polars", "pyarrow", "torch", "numpy", "dspy", "ray"}
    code = f"import sys, pipeline.on_ray.actor; print(sorted({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout.strip() == "[]"
