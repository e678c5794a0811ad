"""`mmgrpo reproduce RUN FOLDER`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.commands.arguments import count, execution_arguments, folder
from pipeline.terminal import say
from schemas.errors import DataError

TEXT = "group, score, train and evaluate a run once more from its rollouts, and compare"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("run", type=folder, help="a run folder, or its address")
    parser.add_argument("folder", type=Path, help="a fresh folder for what is made again")
    parser.add_argument(
        "--iteration", action="append", type=count, default=[], metavar="I", help="only this one; may be repeated"
    )
    parser.add_argument("--no-evaluate", action="store_true", help="do not score policies again")
    parser.add_argument("--root", type=Path, metavar="D", help="the recipe's folder, if it has moved")
    execution_arguments(parser)


def do(options: argparse.Namespace) -> int:
    """`mmgrpo reproduce RUN FOLDER`."""
    from pipeline.progress import Reporter
    from pipeline.recipes import load_execution
    from pipeline.reproducing.compare import DIFFERS
    from pipeline.reproducing.reproduce import NAME, Asked, reproduce

    execution = load_execution(options.execution, options.exec)
    folder = options.folder.absolute()
    asked = Asked(options.run, folder, tuple(options.iteration), not options.no_evaluate, options.root)
    found = reproduce(asked, execution, Reporter(execution.progress))
    for item in found.compared:
        say(item)
    if found.state == DIFFERS:
        lines = [problem for item in found.compared for problem in item.problems]
        names = ", ".join(item.what for item in found.compared if item.state == DIFFERS)
        told = "\n".join([f"{options.run} does not come out again: {names}", *(f"  - {line}" for line in lines)])
        raise DataError(f"{told}\n{folder / NAME} has every figure")
    say(f"{options.run} comes out again, {found.state}: {len(found.compared)} jobs; {folder / NAME}")
    return 0
