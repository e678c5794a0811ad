"""Arguments that several commands take."""

from __future__ import annotations

import argparse
from pathlib import Path


def recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """A recipe, its run folder, and the settings of both."""
    parser.add_argument("recipe", type=Path, help="a recipe file (TOML)")
    parser.add_argument("--run-dir", type=Path, metavar="D", help="the run folder (default: runs/NAME of the recipe)")
    settings_arguments(parser)


def iterations_argument(parser: argparse.ArgumentParser) -> None:
    """How many iterations, where it is not the recipe's number."""
    parser.add_argument("--iterations", type=count, metavar="N", help="iterations (default: run.iterations)")


def settings_arguments(parser: argparse.ArgumentParser) -> None:
    """`--set` for the recipe, and the execution settings."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="set a recipe field (schemas/recipe*.py list them); may be repeated",
    )
    execution_arguments(parser)


def execution_arguments(parser: argparse.ArgumentParser) -> None:
    """Settings of the machine."""
    parser.add_argument("--execution", type=Path, metavar="FILE", help="execution settings (TOML); never part of a key")
    parser.add_argument(
        "--exec",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="set an execution field (schemas/execution.py lists them); may be repeated",
    )


def count(text: str) -> int:
    """A number that is not negative."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number
