"""What each command does, once the command line is parsed. Each returns its exit code."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pipeline.progress import Reporter
from pipeline.recipes import LoadedRecipe, load_execution, load_recipe
from schemas.errors import DataError, RecipeError
from schemas.execution import Execution


def do_run(options: argparse.Namespace) -> int:
    """`mmgrpo run RECIPE`."""
    from pipeline.jobs import Job
    from pipeline.outcome import cost_line, score_line
    from pipeline.reporting.build import build_report
    from pipeline.run import open_run, run_all

    loaded, execution, folder = _resolve(options)
    reporter = Reporter(execution.progress)
    with open_run(loaded, execution, folder, reporter) as runner:

        def after(job: Job) -> None:
            if job.stage.NAME == "evaluate":
                reporter.note(score_line(folder, job.slot[1], int(job.slot[2])))

        ended = run_all(runner, _iterations(options, loaded), after)
        if ended:
            reporter.note(f"The run ended early: {ended}")
        if runner.made == 0:
            print(f"Everything in {folder} is up to date; nothing was run.")
        page = build_report(folder)
        print(cost_line(folder))
        print(f"Report: {page}")
    return 0


def do_plan(options: argparse.Namespace) -> int:
    """`mmgrpo plan RECIPE`."""
    from pipeline.plan import plan, render

    loaded, execution, folder = _resolve(options)
    print(render(plan(loaded, folder, _iterations(options, loaded), execution.cache)))
    return 0


def do_stage(options: argparse.Namespace) -> int:
    """`mmgrpo stage NAME RECIPE --iteration I`."""
    from pipeline.run import open_run
    from pipeline.single import run_stage
    from pipeline.walk import identify

    loaded, execution, folder = _resolve(options)
    with open_run(loaded, execution, folder, Reporter(execution.progress)) as runner:
        setup = identify(loaded.recipe, loaded.root, execution.cache)
        run_stage(runner, setup, options.name, options.iteration)
        if runner.made == 0:
            print(f"{options.name} of iteration {options.iteration} is up to date; nothing was run.")
    return 0


def do_evaluate(options: argparse.Namespace) -> int:
    """`mmgrpo evaluate --test RECIPE`."""
    from pipeline.outcome import score_line
    from pipeline.reporting.build import build_report
    from pipeline.run import open_run
    from pipeline.single import run_test
    from pipeline.walk import identify

    loaded, execution, folder = _resolve(options)
    split = loaded.recipe.examples.test
    if split is None:
        raise RecipeError("the recipe names no test split: set examples.test")
    with open_run(loaded, execution, folder, Reporter(execution.progress)) as runner:
        setup = identify(loaded.recipe, loaded.root, execution.cache)
        for index in run_test(runner, setup, split):
            print(score_line(folder, split, index))
        print(f"The test split of this run has been opened {runner.state.tests_opened} time(s).")
        build_report(folder)
    return 0


def do_verify(options: argparse.Namespace) -> int:
    """`mmgrpo verify RUN`."""
    from pipeline.verify import verify

    found = verify(options.run)
    if found.problems:
        lines = "\n".join(f"  - {problem}" for problem in found.problems)
        raise DataError(f"{options.run} does not verify:\n{lines}")
    print(f"{options.run}: {found.artifacts} artifacts, {found.files} files, all as their manifests say")
    return 0


def do_lineage(options: argparse.Namespace) -> int:
    """`mmgrpo lineage RUN`."""
    from pipeline import lineage

    result: Any
    if options.policy:
        result = lineage.of_adapter(options.run, options.policy)
    elif options.rollout:
        result = lineage.of_rollout(options.run, options.rollout)
    else:
        result = lineage.chain(options.run)
    print(json.dumps(result, indent=2) if options.json else _tree(result))
    return 0


def do_report(options: argparse.Namespace) -> int:
    """`mmgrpo report RUN`."""
    from pipeline.reporting.build import build_report

    print(f"Report: {build_report(options.run)}")
    return 0


def do_export(options: argparse.Namespace) -> int:
    """`mmgrpo export groups RUN TARGET`."""
    from pipeline.export import export_groups

    rows = export_groups(options.run, options.iteration, options.target)
    print(f"{options.target}: {rows} members")
    return 0


def do_doctor(options: argparse.Namespace) -> int:
    """`mmgrpo doctor`."""
    from pipeline.doctor import examine, render

    findings = examine(options.cache)
    print(render(findings))
    return 0 if all(item.fine for item in findings) else 4


def _resolve(options: argparse.Namespace) -> tuple[LoadedRecipe, Execution, Path]:
    loaded = load_recipe(options.recipe, options.set)
    execution = load_execution(options.execution, options.exec)
    # Absolute from here on: a program may change the working folder.
    return loaded, execution, (options.run_dir or Path("runs") / loaded.recipe.name).absolute()


def _iterations(options: argparse.Namespace, loaded: LoadedRecipe) -> int:
    return loaded.recipe.run.iterations if options.iterations is None else int(options.iterations)


def _tree(value: Any, indent: int = 0) -> str:
    """Nested rows as indented text; digests cut to twelve digits."""
    pad = "  " * indent
    if isinstance(value, dict):
        return "\n".join(
            f"{pad}{name}:\n{_tree(item, indent + 1)}"
            if isinstance(item, (dict, list)) and item
            else f"{pad}{name}: {_cell(item)}"
            for name, item in value.items()
        )
    if isinstance(value, list):
        return "\n".join(
            _tree(item, indent) if isinstance(item, dict) and indent == 0 else f"{pad}- {_row(item)}" for item in value
        )
    return f"{pad}{_cell(value)}"


def _row(item: Any) -> str:
    if isinstance(item, dict):
        return ", ".join(f"{name} {_cell(value)}" for name, value in item.items())
    return _cell(item)


def _cell(value: Any) -> str:
    text = "none" if value is None or value == [] else str(value)
    return text[:12] if len(text) == 64 else text
