"""`mmgrpo doctor`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.commands.arguments import execution_arguments
from pipeline.terminal import say

TEXT = "what is installed, what is missing, and what mends it"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("--cache", type=Path, metavar="D", help="folder of converted models (default: as for a run)")
    parser.add_argument(
        "--convert", action="store_true", help="convert the small model too, where that is not done yet"
    )
    execution_arguments(parser)


def do(options: argparse.Namespace) -> int:
    """`mmgrpo doctor`."""
    from pipeline.doctor import examine, render
    from pipeline.recipes import load_execution

    execution = load_execution(options.execution, options.exec)
    cache = {"cache": str(options.cache)} if options.cache else {}
    findings = examine(execution.model_copy(update=cache), convert=options.convert)
    say(render(findings))
    return 0 if all(item.fine for item in findings) else 4
