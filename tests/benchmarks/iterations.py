"""What each of the fields that make iterations learn does: variants of the demo's recipe on several seeds.

`python -m tests.benchmarks.iterations` makes one ordinary run for each variant and seed, opens its test split once,
and writes every finished result to a JSON file at once; what is in that file already is not run again, and an
interrupted run goes on where it was. It ends with a table. With `--budget-seconds` it stops in time and says what is
missing. Seconds of stages are those of `--jobs` runs that share the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

from pipeline.provenance import package_versions
from pipeline.recipes import load_recipe
from tests.benchmarks.iterations_table import markdown, summarise
from tests.benchmarks.iterations_units import Machine, Unit, variants


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then show what there is. Returns 1 when a run failed, 0 otherwise."""
    options = _parser().parse_args(arguments)
    recipe = load_recipe(options.recipe, []).recipe
    iterations = options.iterations or recipe.run.iterations
    known = variants(recipe, iterations)
    names = options.variants or list(known)
    units = [
        Unit(options.recipe.resolve(), name, tuple(known[name]), seed, iterations, options.base.resolve())
        for seed in options.seeds
        for name in names
    ]
    cores = len(os.sched_getaffinity(0))
    threads = options.threads or max(1, cores // options.jobs)
    machine = Machine(options.device, threads, options.concurrency, options.cache and options.cache.resolve())
    book = Book(options.out, list(known), {"device": options.device, "jobs": options.jobs, "threads": threads})
    failed = work(units, machine, book, options.jobs, options.budget_seconds)
    book.show(units)
    return 1 if failed else 0


@dataclass
class Book:
    """The results file."""

    path: Path
    names: list[str]
    machine: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path.exists():
            self.rows = json.loads(self.path.read_text())["rows"]

    def has(self, unit: Unit) -> bool:
        """Whether the unit's result is there."""
        return any(row["identity"] == unit.identity for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Write one more result, in place of an older one of its variant and seed."""
        place = (row["variant"], row["seed"])
        self.rows = [other for other in self.rows if (other["variant"], other["seed"]) != place] + [row]
        self.rows.sort(key=lambda each: (self.names.index(each["variant"]), each["seed"]))
        document = {
            "summary": summarise(self.rows, self.names),
            "rows": self.rows,
            "machine": self.machine,
            "packages": package_versions(),
        }
        draft = self.path.with_suffix(".tmp")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(document, indent=1) + "\n")
        draft.replace(self.path)
        print(
            f"{row['variant']}, seed {row['seed']}: test {row['test_first']['estimate']:.3f} -> "
            f"{row['test_last']['estimate']:.3f}, {row['wall_seconds']:.0f} s",
            flush=True,
        )

    def show(self, units: Sequence[Unit]) -> None:
        """Print the table, and what is missing."""
        print(markdown(summarise(self.rows, self.names)))
        missing = [f"{unit.variant} {unit.seed}" for unit in units if not self.has(unit)]
        print(f"missing: {'; '.join(missing)}" if missing else f"all {len(units)} runs are in {self.path}")


def work(units: Sequence[Unit], machine: Machine, book: Book, jobs: int, budget: float | None) -> list[Unit]:
    """Run the units that the book lacks, `jobs` at a time. Returns those that failed.

    Past the budget nothing is started, and what still runs is stopped: a later call goes on from there. Nothing is
    started either that would not fit in what is left, going by the longest so far.
    """
    began = time.monotonic()
    waiting = [unit for unit in units if not book.has(unit)]
    running: dict[Unit, tuple[Popen[bytes], float]] = {}
    failed: list[Unit] = []
    longest = 0.0

    def left() -> float:
        return float("inf") if budget is None else budget - (time.monotonic() - began)

    try:
        while running or (waiting and left() > longest):
            while waiting and len(running) < jobs and left() > longest:
                unit = waiting.pop(0)
                running[unit] = unit.start(machine), time.monotonic()
            for unit in [unit for unit, (process, _) in running.items() if process.poll() is not None]:
                process, started = running.pop(unit)
                wall = time.monotonic() - started
                if process.returncode == 0:
                    longest = max(longest, wall)
                    book.add(unit.measure(wall))
                else:
                    failed.append(unit)
                    print(f"{unit.variant}, seed {unit.seed}: failed\n{unit.error()}", flush=True)
            if left() <= 0:
                break
            time.sleep(0.2)
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.wait()
    return failed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=Path("data/banking77_8/recipe.toml"))
    parser.add_argument("--base", type=Path, default=Path("runs/iterations"), help="folder of the run folders")
    parser.add_argument("--out", type=Path, default=Path("data/baselines/iterations.json"))
    parser.add_argument("--iterations", type=int, help="of each run (default: the recipe's)")
    parser.add_argument("--seeds", type=_numbers, default=[0, 1, 2], metavar="0,1,2")
    parser.add_argument("--variants", type=_words, metavar="A;B", help="some of the variants only")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--threads", type=int, help="of each run (default: the cores shared out)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--concurrency", type=int, default=256, help="program runs in flight in each run")
    parser.add_argument("--cache", type=Path, help="folder of converted models")
    parser.add_argument("--budget-seconds", type=float)
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(";")]


if __name__ == "__main__":
    raise SystemExit(main())
