"""Makes the tasks' example files from their sources: `python -m pipeline.tasks.prepare SOURCE_DIR data`.

SOURCE_DIR holds `banking77/`, `pupa/`, `multihop/` and `hover/` as the SOURCE.md files describe. Every draw is seeded
and every file is byte-stable, so that running it again changes nothing. Counts of what was kept and dropped are
printed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from pipeline.tasks import prepare_banking77, prepare_multihop, prepare_pupa, prepare_tiny
from schemas.errors import DataError

Counts = dict[str, int]


def prepare(source: Path, data: Path) -> dict[str, Counts]:
    """Write every task's examples below `data`; returns counts by data set.

    Raises:
        DataError: when a source file is missing or is not what was drawn from.
    """
    makers: dict[str, Callable[[], Counts]] = {
        "tiny": lambda: prepare_tiny.write(data / "tiny"),
        "banking77": lambda: prepare_banking77.write_paper(source / "banking77", data / "banking77"),
        "banking77_8": lambda: prepare_banking77.write_eight(source / "banking77", data / "banking77_8"),
        "pupa": lambda: prepare_pupa.write(source / "pupa", data / "pupa"),
        "multihop": lambda: prepare_multihop.write(source / "multihop", source / "hover", data / "multihop"),
    }
    return {name: make() for name, make in makers.items()}


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.tasks.prepare", description="Make the tasks' examples.")
    parser.add_argument("source", type=Path, help="folder with the sources, one folder each")
    parser.add_argument("data", type=Path, help="folder to write to, one folder a task")
    options = parser.parse_args(arguments)
    try:
        print(json.dumps(prepare(options.source, options.data), indent=2))
    except DataError as error:
        parser.exit(error.exit_code, f"{error}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
