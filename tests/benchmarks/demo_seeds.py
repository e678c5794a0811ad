"""The demo on five seeds that were fixed beforehand: does it learn, on test examples that nothing else touched?

`python -m tests.benchmarks.demo_seeds RUNS RESULT.json` runs the demo's recipe for seeds 0 to 4 (what is done already
is skipped), opens each run's test split once, and prints a row a seed. The last line is one JSON object.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pipeline.provenance import package_versions
from pipeline.reporting.costs import collect_costs, total_seconds
from pipeline.reporting.opened import open_run
from pipeline.reporting.scores import collect_scores
from stages.statistics import Interval

RECIPE = Path("data/banking77_8/recipe.toml")
SEEDS = range(5)


def main(runs: Path, result: Path) -> None:
    """Run what is missing, then measure."""
    rows = [measure(runs / f"seed-{seed}", seed) for seed in SEEDS]
    rose = sum(row["test_change"]["low"] > 0 for row in rows)
    summary = {
        "recipe": str(RECIPE),
        "seeds": len(rows),
        "rose": rose,
        "test_first": rows[0]["test_first"]["estimate"],
        "test_last_mean": sum(row["test_last"]["estimate"] for row in rows) / len(rows),
        "rows": rows,
        "packages": package_versions(),
    }
    result.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"{rose} of {len(rows)} seeds rose with a paired 95 % lower bound above 0 on the test split")
    print(json.dumps({name: value for name, value in summary.items() if name not in {"rows", "packages"}}))


def measure(folder: Path, seed: int) -> dict[str, Any]:
    """One seed: run, test, and its figures."""
    options = [str(RECIPE), "--run-dir", str(folder), "--set", f"seed={seed}"]
    began = time.monotonic()
    _mmgrpo("run", *options)
    wall = time.monotonic() - began
    if "test" not in open_run(folder).state.evaluations:
        _mmgrpo("evaluate", "--test", *options)
    run = open_run(folder)
    test, dev = collect_scores(run, "test"), collect_scores(run, "dev")
    assert test.first is not None
    assert test.last is not None
    assert test.last.to_first is not None
    row = {
        "seed": seed,
        "test_first": _plain(test.first.score),
        "test_last": _plain(test.last.score),
        "test_change": _plain(test.last.to_first),
        "dev": [round(policy.score.estimate, 4) for policy in dev.policies],
        "stage_seconds": round(total_seconds(collect_costs(run)) or 0.0, 1),
        "wall_seconds": round(wall, 1),
    }
    change = test.last.to_first
    print(
        f"seed {seed}: test {test.first.score.estimate:.3f} -> {test.last.score.estimate:.3f}, "
        f"{change.estimate:+.3f} [{change.low:+.3f}, {change.high:+.3f}], {row['stage_seconds']:.0f} s of stages",
        flush=True,
    )
    return row


def _mmgrpo(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pipeline.cli", *arguments], check=True)


def _plain(interval: Interval) -> dict[str, Any]:
    return dataclasses.asdict(interval)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
