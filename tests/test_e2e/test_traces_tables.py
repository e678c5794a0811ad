"""Rollouts of one run, taken into another as a snapshot: exact rows stay exact, and are trained on as such."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pipeline.store import Store
from stages.contract import Artifact
from tests.test_e2e.kit import artifact, mmgrpo, own_recipe, run

NAMES = pl.col("rollout_id", "call_index")


def snapshot_of(recipe: Path, source: Path, name: str) -> Path:
    folder = recipe.parent / name
    assert mmgrpo("ingest", recipe, source, "--snapshots", folder, "--exec", "progress=off") == 0
    ((_, path),) = Store(folder).all()
    return path


def calls_of(folder: Path) -> pl.DataFrame:
    """Invocations by the trace that they are of, in the run that sampled them the rollout."""
    traces = pl.read_parquet(folder / "traces.parquet", columns=["trace", "rollout_id"])
    calls = pl.read_parquet(folder / "invocations.parquet").join(traces, on="rollout_id")
    return calls.drop("rollout_id").rename({"trace": "rollout_id"}).sort(NAMES)


def test_a_run_trains_on_the_exact_rows_of_another(tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path / "task")
    assert run(recipe, tmp_path / "first", "--iterations", "1") == 0
    source: Artifact = artifact(tmp_path / "first", "rollout")
    snapshot = snapshot_of(recipe, source.path, "snapshots")
    sampled, taken = pl.read_parquet(source.file("invocations.parquet")).sort(NAMES), calls_of(snapshot)
    assert taken.select(sampled.columns).equals(sampled)
    again = snapshot_of(recipe, snapshot, "again")
    assert (again / "invocations.parquet").read_bytes() == (snapshot / "invocations.parquet").read_bytes()

    named = ("--set", f"traces.snapshot={snapshot}", "--set", "seed=1")
    assert run(recipe, tmp_path / "second", "--iterations", "1", *named) == 0
    figures = artifact(tmp_path / "second", "train").manifest.metrics
    assert figures["objective"] == "mmGRPO"
    groups = pl.read_parquet(artifact(tmp_path / "second", "group").file("groups.parquet"))
    assert set(groups["source"]) == {"student", "ingest:mmgrpo_tables"}
