"""What a disturbed run must end as: nothing half done, every rollout once, and what a quiet run makes of its data."""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.cli import main as mmgrpo
from pipeline.locks import hold
from pipeline.manifests import MANIFEST, read_manifest
from pipeline.runfile import read_run
from pipeline.store import Store
from schemas.errors import LockedError

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLED = ("rollout", "evaluate")
"""Stages whose tables are drawn, so that a quiet run is given them; everything else follows from them."""


def left_over(run: Path) -> dict[str, int]:
    """What a dead process may have left: unfinished artifacts, temporary files, locks that somebody still holds."""
    held = 0
    for lock in [run / ".lock", *run.rglob(".*.lock")]:
        try:
            with hold(lock, "lock"):
                pass
        except LockedError:
            held += 1
    temporary = [path for path in run.rglob("*.tmp") if path.is_file()]
    return {
        "partial_left": len(Store(run / "artifacts").unfinished()),
        "temporary_left": len(temporary),
        "locks_held": held,
    }


def counted(run: Path) -> dict[str, int]:
    """Rollouts that the chosen artifacts ought to have and do not, and those that they have twice."""
    store, state = Store(run / "artifacts"), read_run(run)
    lost = doubled = 0
    for iteration in state.iterations:
        artifact = store.open("rollout", iteration["rollout"])
        rows = pl.read_parquet(artifact.file("rollouts.parquet"), columns=["example_id", "rollout_index", "rollout_id"])
        calls = pl.read_parquet(artifact.file("invocations.parquet"), columns=["rollout_id", "call_index"])
        section = state.recipe["rollout"]
        lost += max(0, section["examples"] * section["rollouts"] - rows.height)
        doubled += rows.height - rows["rollout_id"].n_unique() + calls.height - calls.n_unique()
    return {"lost_rows": lost, "doubled_rows": doubled}


def compare(run: Path, quiet: Path, options: list[str]) -> dict[str, Any]:
    """Make the same number of iterations without a disturbance, from the sampled tables of `run`."""
    for stage in SAMPLED:
        for folder in (run / "artifacts" / stage).iterdir():
            if not folder.name.startswith("."):
                shutil.copytree(folder, quiet / "artifacts" / stage / folder.name)
    state = read_run(run)
    codes = set()
    for _ in state.iterations:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            codes.add(mmgrpo(["next", str(ROOT / "data/tiny/recipe.toml"), "--run-dir", str(quiet), *options]))
    other = read_run(quiet)
    mine, theirs = digests(run), digests(quiet)
    return {
        **counted(run),
        "quiet_codes": sorted(codes),
        "policies": len(state.policies),
        "policies_equal": state.policies == other.policies,
        "chosen_equal": state.model_dump(exclude={"digest"}) == other.model_dump(exclude={"digest"}),
        "artifacts_compared": len(mine),
        "artifacts_that_differ": sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name)),
        "equal": mine == theirs and state.policies == other.policies,
    }


def digests(run: Path) -> dict[str, str]:
    """Digest of every finished artifact, by stage and key."""
    store = Store(run / "artifacts")
    return {f"{stage}/{folder.name}": read_manifest(folder / MANIFEST).digest for stage, folder in store.all()}
