"""`mmgrpo export groups RUN TARGET`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.commands.arguments import count

TEXT = "write the groups of an iteration joined with their tokens"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("what", choices=["groups"])
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("target", type=Path, help="the Parquet file to write")
    parser.add_argument("--iteration", type=count, default=0, metavar="I", help="which iteration (default 0)")


def do(options: argparse.Namespace) -> int:
    """`mmgrpo export groups RUN TARGET`."""
    from pipeline.export import export_groups

    rows = export_groups(options.run, options.iteration, options.target)
    print(f"{options.target}: {rows} members")
    return 0
