"""The frozen prompts of a run: what was tried, what it brought, and what the modules are told now."""

from __future__ import annotations

from typing import Any

from pipeline.reporting.clips import clip
from pipeline.reporting.data import ModulePrompt, Prompts
from pipeline.reporting.opened import OpenRun
from schemas.cells import FIELDS, cell
from schemas.errors import DataError
from schemas.shapes import Shape, first_problem
from stages.contract import Artifact
from stages.programs.prompts import STATE

LENGTH = 2000
"""Characters of a module's instructions that are shown."""


def collect_prompts(run: OpenRun) -> tuple[Prompts, ...]:
    """Each finished prompts stage of the run, in order."""
    made = [
        (iteration or 0, run.store.find(stage, key)) for stage, iteration, key in run.chosen() if stage == "prompts"
    ]
    return tuple(_prompts(iteration, artifact) for iteration, artifact in made if artifact is not None)


class _Signature(Shape):
    instructions: str


class _Module(Shape):
    """A module in a saved state."""

    signature: _Signature
    demos: list[Any]


def _prompts(iteration: int, artifact: Artifact) -> Prompts:
    metrics = artifact.manifest.metrics
    path = artifact.file(STATE)
    state = cell(path.read_bytes(), FIELDS, str(path))
    named = {"self": state} if "signature" in state else state  # a program that is a predictor itself
    for name in named.keys() - {"metadata"}:
        if problem := first_problem(name, _Module, named[name]):
            raise DataError(f"{path}: {problem}. Restore it, or delete {artifact.folder} and run again")
    modules = [
        ModulePrompt(name, clip(part["signature"]["instructions"], LENGTH), len(part["demos"]))
        for name, part in named.items()
        if name != "metadata"
    ]
    return Prompts(
        iteration=iteration,
        optimizer=metrics["optimizer"],
        trials=metrics["trials"],
        score_before=metrics["score_before"],
        score=metrics["score"],
        validation=metrics["validation_examples"],
        calls=metrics["calls"],
        new_calls=metrics["new_calls"],
        modules=tuple(modules),
    )
