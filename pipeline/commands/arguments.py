"""Arguments that several commands take."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from pipeline.remote.attached import attach
from schemas.addresses import is_address
from schemas.errors import MmgrpoError, RecipeError


def folder(text: str) -> Path:
    """A folder by its path, or by an address (`s3://…`), which is worked on in its mirror here."""
    if not is_address(text):
        if _NEARLY.match(text):
            raise argparse.ArgumentTypeError(f"{text} is no address: expected one like s3://bucket/folder")
        return Path(text)
    if text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(
            f"{text} can only be read: expected a folder, or an address like s3://bucket/x"
        )
    try:
        return attach(text)
    except MmgrpoError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def refuse_addresses(options: argparse.Namespace) -> None:
    """Stop where an address was given for what must be a path of this machine.

    Raises:
        RecipeError: naming the argument.
    """
    for name, value in vars(options).items():
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, Path) and len(path.parts) > 1 and _SCHEME.fullmatch(path.parts[0]):
                told = name.replace("_", "-")
                raise RecipeError(f"{told}: this command takes a path of this machine there, and no address")


_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")
_NEARLY = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/")
"""`s3:/bucket` and `S3://bucket`: as paths they would make a folder of that name here."""


def snapshots_argument(parser: argparse.ArgumentParser) -> None:
    """The folder of snapshots."""
    parser.add_argument(
        "--snapshots",
        type=folder,
        default=Path("snapshots"),
        metavar="D",
        help="folder of snapshots, or its address (default: snapshots)",
    )


def recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """A recipe, its run folder, and the settings of both."""
    parser.add_argument("recipe", type=Path, help="a recipe file (TOML)")
    parser.add_argument(
        "--run-dir",
        type=folder,
        metavar="D",
        help="the run folder, or its address such as s3://bucket/run (default: runs/NAME of the recipe)",
    )
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
