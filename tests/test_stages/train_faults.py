"""Kill the train stage with SIGKILL, between micro-batches, while a checkpoint is written and right behind one.

`python -m tests.test_stages.train_faults FOLDER` trains each setting once undisturbed and once killed again and again,
and prints one JSON object: per setting the kills, at which steps, and the files whose bytes differ. Everything runs
in forked children of a process that has imported all and computed nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.test_e2e.faults import in_child, preload
from tests.test_stages.loss_kit import trajectory_zoo
from tests.test_stages.train_kit import LocalOut, make_calls, run, write_artifacts

SETTINGS: dict[str, dict[str, Any]] = {
    f"{precision}, dropout {dropout}": {"precision": precision, "adapter": {"r": 4, "alpha": 8, "dropout": dropout}}
    for precision, dropout in (("float32", 0.0), ("float32", 0.2), ("bfloat16", 0.2))
} | {
    "trajectories, dropout 0.2": {
        "group": {"unit": "trajectory"},
        "loss": "cispo",
        "ratio_level": "sequence",
        "rho_level": "sequence",
        "balance": "token",
        "adapter": {"r": 4, "alpha": 8, "dropout": 0.2},
    }
}
FIELDS: dict[str, Any] = {"epochs": 2, "examples_per_step": 1, "beta": 0.1}
BUDGET = 28
"""Tokens of a micro-batch: every step has several."""


KILLS = (
    ("between micro-batches", 1),
    ("behind steps", 1),
    ("between micro-batches", 2),
    ("in a checkpoint", 1),  # of its two files
    ("in a checkpoint", 2),
    ("behind steps", 2),
    ("between micro-batches", 2),  # from here on in the second epoch
    ("in a checkpoint", 1),
    ("behind steps", 1),
)
"""One process after another is killed at the n-th moment of its kind, and the next goes on from what that one left."""


class Counter:
    """Kills this process at the n-th moment of a kind, noting how many steps had been taken."""

    def __init__(self, kill: tuple[str, int] | None, log: Path) -> None:
        self.kill, self.log, self.steps = kill, log, 0
        self.seen: dict[str, int] = {}

    def event(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1
        if self.kill == (what, self.seen[what]):
            with self.log.open("a") as file:
                file.write(json.dumps([what, self.steps]) + "\n")
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, owner: Any, name: str, what: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            result = original(*arguments, **options)
            self.event(what)
            return result

        setattr(owner, name, wrapped)


def attempt(
    root: Path,
    name: str,
    kill: tuple[str, int] | None,
    fields: dict[str, Any],
    fork: Callable[[Callable[[], int]], int] = in_child,
) -> int:
    """Run the stage in a child, as far as it comes. Returns its exit code."""

    def work() -> int:
        from stages.training import checkpoint, fit
        from stages.training.scorer import Scorer

        fit.FIXED_BUDGET = BUDGET
        counter = Counter(kill, root / f"{name}.log")

        def progress(done: int, total: int, unit: str) -> None:
            counter.steps = done if unit == "steps" else counter.steps
            counter.event(f"behind {unit}")

        counter.watch(Scorer, "__call__", "between micro-batches")
        counter.watch(checkpoint, "save_file", "in a checkpoint")
        calls = trajectory_zoo("token") if "group" in fields else make_calls()
        inputs, _ = write_artifacts(root / "data", calls, root / "cache")
        run(inputs, root / "cache", root, BUDGET, LocalOut(root / name, progress), **FIELDS | fields)
        return 0

    return fork(work)


def compare(root: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """What killing one setting did."""
    assert attempt(root, "whole", None, fields, preload) == 0
    for kill in KILLS:
        code = attempt(root, "killed", kill, fields)
        assert code == -signal.SIGKILL, f"{kill}: a process that was to be killed ended with {code}"
    assert attempt(root, "killed", None, fields) == 0
    whole, killed = (
        {
            path.relative_to(root / name).as_posix(): path.read_bytes()
            for path in sorted((root / name).rglob("files/**/*"))
            if path.is_file()
        }
        for name in ("whole", "killed")
    )
    log = [json.loads(line) for line in (root / "killed.log").read_text().splitlines()]
    differ = sorted(name for name in whole.keys() | killed.keys() if whole.get(name) != killed.get(name))
    return {"log": log, "differ": differ, "files": sorted(whole)}


def main(folder: Path) -> None:
    found = {}
    for name, fields in SETTINGS.items():
        root = folder / name.replace(" ", "").replace(",", "-")
        root.mkdir(parents=True)
        found[name] = compare(root, fields)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
