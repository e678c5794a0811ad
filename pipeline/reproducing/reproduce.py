"""`mmgrpo reproduce`: a run's jobs once more in a fresh folder, each from the inputs that the run recorded.

Below the folder lie `recorded/`, what was taken over, `artifacts/`, what was made again, and reproduction.json. Every
job reads what the run recorded, not what was made again before it, so that a difference names the stage that it comes
from. Only scores go on: an adapter that came out otherwise is scored itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import runfile
from pipeline.files import replace_file
from pipeline.graph import Graph, open_graph
from pipeline.launching.settings import refuse_nodes
from pipeline.locks import hold
from pipeline.manifests import check_files
from pipeline.progress import Reporter
from pipeline.reproducing.compare import DIFFERS, IDENTICAL, TOLERANCES, WITHIN, Compared, Tolerance, compare
from pipeline.reproducing.jobs import Wanted, job_of, refuse_other_code, wanted, with_adapter
from pipeline.reproducing.taken import take_over
from pipeline.store import Store
from pipeline.tombstones import refuse_deleted
from schemas.canonical import canonical_json
from schemas.errors import DataError, RecipeError
from schemas.execution import Execution
from schemas.foreign import read_json
from stages.contract import Artifact

NAME = "reproduction.json"


@dataclass(frozen=True)
class Asked:
    """What is to be reproduced."""

    run: Path
    folder: Path
    iterations: tuple[int, ...] = ()
    """All, without any."""
    evaluate: bool = True
    root: Path | None = None
    """The recipe's folder; default: the one that the run recorded."""


@dataclass(frozen=True)
class Reproduction:
    """What came of it."""

    compared: tuple[Compared, ...]
    tolerance: Tolerance
    dtype: str

    @property
    def state(self) -> str:
        """Of all jobs together: as of the one that is furthest away; the same scores are no distance."""
        states = {item.state for item in self.compared}
        return DIFFERS if DIFFERS in states else WITHIN if WITHIN in states else IDENTICAL


def reproduce(asked: Asked, execution: Execution, reporter: Reporter) -> Reproduction:
    """Do it all; a process that was killed goes on with the same call.

    Raises:
        RecipeError: when the folder holds something else, the program's code has changed, or another release made it.
        DataError: when the run is damaged.
    """
    refuse_nodes(execution, "mmgrpo reproduce")
    run, store = runfile.read_run(asked.run), Store(asked.run / "artifacts")
    todo = wanted(run, store, asked.iterations or range(len(run.iterations)), evaluate=asked.evaluate)
    if not todo:
        raise RecipeError(f"{asked.run} has nothing to make again: no iteration has been grouped, nothing was scored")
    program = store.open("program", run.setup["program"])
    root = _root(asked, program)
    if any(item.artifact.manifest.stage == "evaluate" for item in todo):
        refuse_other_code(runfile.resolved(asked.run, run), program, root)
    about = {"run": str(asked.run.absolute()), "run_digest": run.digest}
    _claim(asked.folder, about)
    with hold(asked.folder / ".lock", f"folder {asked.folder}"):
        graph = _taken(open_graph(asked.run), todo, asked.folder)
        recipe = runfile.resolved(asked.run, run)
        dtype = recipe.model.dtype if recipe.train.precision == "float32" else "bfloat16"
        tolerance = TOLERANCES["float32" if dtype == "float32" else "bfloat16"]
        again = _Again(asked.folder, execution, reporter, tolerance)
        found = Reproduction(again.all(todo, graph, run, root), tolerance, dtype)
        _write(asked.folder, about, found)
    return found


@dataclass
class _Again:
    folder: Path
    execution: Execution
    reporter: Reporter
    tolerance: Tolerance

    def all(self, todo: Sequence[Wanted], graph: Graph, run: runfile.RunFile, root: Path) -> tuple[Compared, ...]:
        """Every job, in order."""
        remade: dict[str, Artifact] = {}
        found = []
        for item in todo:
            job = job_of(item, graph, run, root)
            stage, metrics = item.artifact.manifest.stage, item.artifact.manifest.metrics
            policy = job.inputs.params.get("policy")
            if stage == "evaluate" and policy in remade:
                job = with_adapter(job, remade[policy])
            self.reporter.start(item.label)
            try:
                again = job.again(self.folder / "artifacts", self.execution, self.reporter)
            finally:
                self.reporter.stop()
            if problems := check_files(again.path, again.manifest):
                raise DataError(f"what was made again is damaged: {problems[0]}. Delete {again.path} and go on")
            result = compare(item.label, item.artifact, again, self.tolerance)
            self.reporter.finish(result.state)
            if stage == "train" and metrics["trained"] and again.manifest.metrics["trained"]:
                remade |= {} if again.manifest.metrics["policy"] == metrics["policy"] else {metrics["policy"]: again}
            found.append(result)
        return tuple(found)


def _root(asked: Asked, program: Artifact) -> Path:
    told = asked.root or program.manifest.provenance.get("root")
    if told is None:
        raise RecipeError(f"{asked.run} does not say where its recipe lay: name that folder with --root")
    root = Path(told).absolute()
    if not root.is_dir():
        raise RecipeError(f"{root}: no such folder. The recipe lay there; --root names where it is now")
    return root


def _claim(folder: Path, about: dict[str, str]) -> None:
    """A fresh folder, or one that this was begun in."""
    path = folder / NAME
    if path.exists():
        try:
            known = read_json(path)
            same = {name: known[name] for name in about} == about
        except (ValueError, KeyError, TypeError):
            same = False
        if not same:
            raise RecipeError(f"{folder} holds the reproduction of another run, or of one that went on: name another")
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RecipeError(f"{folder} is there already: name a folder that is not")
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, canonical_json({**about, "state": "begun"}) + "\n")


def _taken(source: Graph, todo: Sequence[Wanted], folder: Path) -> Graph:
    """The inputs of all jobs, taken over."""
    needed: dict[Path, Artifact] = {}
    for item in todo:
        for role, found in source.inputs(item.artifact).items():
            if found is None:
                raise DataError(f"{item.artifact.path}: its input '{role}' is not in the run any more")
            refuse_deleted(found)
            needed[found.path] = found
    return Graph(take_over(needed.values(), folder / "recorded"))


def _write(folder: Path, about: dict[str, str], found: Reproduction) -> None:
    document: dict[str, Any] = {**about, "state": found.state, "dtype": found.dtype}
    document["tolerance"] = vars(found.tolerance)
    document["jobs"] = [item.as_json() for item in found.compared]
    replace_file(folder / NAME, json.dumps(document, indent=1, sort_keys=True) + "\n")
