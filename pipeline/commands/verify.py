"""`mmgrpo verify RUN`."""

from __future__ import annotations

import argparse
from pathlib import Path

from schemas.errors import DataError

TEXT = "check every byte of a run against its manifests"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command line takes."""
    parser.add_argument("run", type=Path, help="a run folder")


def do(options: argparse.Namespace) -> int:
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
