"""`mmgrpo verify RUN`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.commands.arguments import folder
from pipeline.remote.attached import shown
from pipeline.terminal import say
from schemas.errors import DataError

TEXT = "check every byte of a run against its manifests"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("run", type=folder, help="a run folder, or its address")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="compute anew what follows from other artifacts (groups, batch plans, policies, means), and compare",
    )
    parser.add_argument("--root", type=Path, metavar="D", help="the recipe's folder, for --deep, if it has moved")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo verify RUN`."""
    from pipeline.verify import verify

    found = verify(options.run, deep=options.deep, root=options.root)
    for line in found.deleted:
        say(line)
    for check in found.checks:
        say(check)
        for line in check.skipped:
            say(f"  not looked at: {line}")
    if found.problems:
        lines = "\n".join(f"  - {problem}" for problem in found.problems)
        raise DataError(f"{options.run} does not verify:\n{lines}")
    say(f"{shown(str(options.run))}: {found.artifacts} artifacts, {found.files} files, all as their manifests say")
    return 0
