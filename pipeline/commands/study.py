"""`mmgrpo study STUDY.toml`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.commands.arguments import settings_arguments

TEXT = "compare strategies on tasks over seeds; what is up to date is skipped"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("study", type=Path, help="a study file (TOML)")
    parser.add_argument("--study-dir", type=Path, metavar="D", help="the study's folder (default: runs/NAME)")
    settings_arguments(parser)


def do(options: argparse.Namespace) -> int:
    """`mmgrpo study STUDY.toml`."""
    from pipeline.recipes import load_execution
    from pipeline.study.command import study

    return study(options.study, options.study_dir, options.set, load_execution(options.execution, options.exec))
