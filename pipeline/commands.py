"""What each command does, once the command line is parsed. Each returns its exit code."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pipeline.progress import Reporter
from pipeline.recipes import LoadedRecipe, load_execution, load_recipe
from schemas.errors import DataError, RecipeError
from schemas.execution import Execution


def do_run(options: argparse.Namespace) -> int:
    """`mmgrpo run RECIPE`."""
    from pipeline.jobs import Job
    from pipeline.lineage import newest_adapters
    from pipeline.outcome import cost_line, score_line
    from pipeline.reporting.build import build_report
    from pipeline.run import open_run, run_all
    from stages.engines.adapters import SHARED_NAME

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
        for name, adapter in newest_adapters(folder).items():
            print(f"Adapter: {adapter}" if name == SHARED_NAME else f"Adapter {name}: {adapter}")
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
    from pipeline.follow import follow_stage
    from pipeline.launch import follows
    from pipeline.run import open_run
    from pipeline.single import run_stage
    from pipeline.walk import identify

    loaded, execution, folder = _resolve(options)
    if follows():
        follow_stage(loaded, execution, folder, options.name, options.iteration)
        return 0
    with open_run(loaded, execution, folder, Reporter(execution.progress)) as runner:
        setup = identify(loaded.recipe, loaded.root, execution.cache)
        jobs = run_stage(runner, setup, options.name, options.iteration)
        if jobs == 0:
            print(f"{options.name} of iteration {options.iteration}: the recipe needs none; nothing was run.")
        elif runner.made == 0:
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


def do_study(options: argparse.Namespace) -> int:
    """`mmgrpo study STUDY.toml`."""
    from pipeline.study.command import study

    return study(options.study, options.study_dir, options.set, load_execution(options.execution, options.exec))


def do_serve(options: argparse.Namespace) -> int:
    """`mmgrpo serve RECIPE`."""
    from pipeline.serving import serving

    loaded, execution, folder = _resolve(options)
    found = serving(loaded, execution, folder, options.host, options.port)
    print(found.printed(), flush=True)
    if not options.only_print:
        found.start()
    return 0


def do_ingest(options: argparse.Namespace) -> int:
    """`mmgrpo ingest RECIPE TRACES…`."""
    from pipeline.ingesting import Wanted, account_of, ingest, suggest_modules

    loaded, execution = load_recipe(options.recipe, options.set), load_execution(options.execution, options.exec)
    reporter = Reporter(execution.progress)
    wanted = Wanted(tuple(options.addresses), options.format, options.rescore, options.onto)
    if options.suggest_modules:
        print(suggest_modules(loaded, execution, wanted, options.snapshots, reporter), end="")
        return 0
    found, made = ingest(loaded, execution, wanted, options.snapshots, reporter)
    print(account_of(found))
    print(f"Snapshot: {found.path}" if made else f"Snapshot: {found.path}, which holds exactly these traces already")
    return 0


def do_snapshot(options: argparse.Namespace) -> int:
    """`mmgrpo snapshot diff A B` and `mmgrpo snapshot export SNAPSHOT FOLDER`."""
    from pipeline.snapshot_diff import diff, render
    from pipeline.snapshot_export import export_snapshot
    from pipeline.snapshots import open_snapshot

    if options.what == "export":
        rows = export_snapshot(open_snapshot(options.snapshot), options.folder)
        print(f"{options.folder}: " + ", ".join(f"{count} {name}" for name, count in rows.items()))
        return 0
    found = diff(open_snapshot(options.before), open_snapshot(options.after))
    print(json.dumps(found.as_json(), indent=2) if options.json else render(found))
    return 0


def do_forget(options: argparse.Namespace) -> int:
    """`mmgrpo forget --trace ID`."""
    from pipeline.forget import Wanted, forget, render

    if not (options.trace or options.user):
        raise RecipeError("name what is to be forgotten: --trace ID, or --user KEY; each may be repeated")
    wanted = Wanted(tuple(options.trace), tuple(options.user), options.reason)
    runs = options.runs if options.runs is not None else sorted(path.parent for path in Path("runs").glob("*/run.json"))
    found = forget(wanted, options.snapshots, runs, Reporter("off"))
    print(json.dumps(found.as_json(), indent=2) if options.json else render(found))
    return 0


def do_verify(options: argparse.Namespace) -> int:
    """`mmgrpo verify RUN`."""
    from pipeline.verify import verify

    found = verify(options.run)
    if found.problems:
        lines = "\n".join(f"  - {problem}" for problem in found.problems)
        raise DataError(f"{options.run} does not verify:\n{lines}")
    print(f"{options.run}: {found.artifacts} artifacts, {found.files} files, all as their manifests say")
    for line in found.deleted:
        print(line)
    return 0


def do_lineage(options: argparse.Namespace) -> int:
    """`mmgrpo lineage RUN`."""
    from pipeline import lineage
    from pipeline.texttable import fields, table

    if options.policy is not None:
        rows = lineage.of_policy(options.run, options.policy)
        print(json.dumps(rows, indent=2) if options.json else table(rows))
    elif options.rollout is not None:
        fate = lineage.of_rollout(options.run, options.rollout)
        parts = {"members": fate["members"], "excluded": fate["excluded"]}
        text = [fields(fate["rollout"]), *(f"\n{name}:\n{table(rows)}" for name, rows in parts.items())]
        text.append(f"\ntrained policies: {', '.join(policy[:12] for policy in fate['policies']) or 'none'}")
        print(json.dumps(fate, indent=2) if options.json else "\n".join(text))
    else:
        rows = lineage.chain(options.run)
        print(json.dumps(rows, indent=2) if options.json else table(rows))
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

    execution = load_execution(options.execution, options.exec)
    cache = {"cache": str(options.cache)} if options.cache else {}
    findings = examine(execution.model_copy(update=cache))
    print(render(findings))
    return 0 if all(item.fine for item in findings) else 4


def _resolve(options: argparse.Namespace) -> tuple[LoadedRecipe, Execution, Path]:
    from pipeline.settle import settle

    loaded = load_recipe(options.recipe, options.set)
    execution = load_execution(options.execution, options.exec)
    # Absolute from here on: a program may change the working folder.
    folder = (options.run_dir or Path("runs") / loaded.recipe.name).absolute()
    loaded, notes = settle(loaded, execution, folder)
    for note in notes:
        print(note, file=sys.stderr)
    reports = Path(execution.report_dir or folder / "trackers").absolute()
    return loaded, execution.model_copy(update={"report_dir": str(reports)}), folder


def _iterations(options: argparse.Namespace, loaded: LoadedRecipe) -> int:
    return loaded.recipe.run.iterations if options.iterations is None else int(options.iterations)
