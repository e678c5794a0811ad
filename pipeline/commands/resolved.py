"""What the arguments of a recipe's command come to: the recipe, the execution settings, the run folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pipeline.recipes import LoadedRecipe, load_execution, load_recipe
from pipeline.settle import settle
from pipeline.terminal import say
from schemas.execution import Execution


def resolve(options: argparse.Namespace) -> tuple[LoadedRecipe, Execution, Path]:
    """The recipe with what a run settles once, the execution settings, and the run folder, absolute."""
    loaded = load_recipe(options.recipe, options.set)
    execution = load_execution(options.execution, options.exec)
    # Absolute from here on: a program may change the working folder.
    folder = (options.run_dir or Path("runs") / loaded.recipe.name).absolute()
    loaded, notes = settle(loaded, execution, folder)
    for note in notes:
        say(note, file=sys.stderr)
    reports = Path(execution.report_dir or folder / "trackers").absolute()
    return loaded, execution.model_copy(update={"report_dir": str(reports)}), folder


def iterations_of(options: argparse.Namespace, loaded: LoadedRecipe) -> int:
    """How many iterations are meant: the argument, or the recipe's number."""
    return loaded.recipe.run.iterations if options.iterations is None else int(options.iterations)
