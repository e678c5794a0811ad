"""Inputs that production saw once: the rollout stage samples siblings, which are grouped with what was logged."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl

from pipeline.ingest_plot import fidelity_figure
from tests.test_e2e.kit import RECIPE, artifact, own_recipe, run
from tests.test_e2e.test_forget import OPTIONS
from tests.test_e2e.test_snapshots import written
from tests.test_e2e.test_traces import ingest, trace


def test_a_snapshot_that_is_data_and_traces_seeds_siblings_of_what_was_seen_once(tmp_path: Path) -> None:
    split = "[ingest]\ndev = 0.3\n"
    recipe, folder = own_recipe(tmp_path / "a", recipe=RECIPE + split), tmp_path / "run"
    once = [trace(1 + n, f"word {n}", "abcDEF"[: 2 + n % 4] + "x", n % 3 / 2) for n in range(10)]
    snapshot = ingest(recipe, written(once, tmp_path / "spans.json"))
    figures = json.loads((snapshot / "manifest.json").read_text())["metrics"]
    assert (figures["examples"], figures["examples_with_siblings"]) == (10, 0)
    both = ("--set", f"traces.snapshot={snapshot}", "--set", f"examples.path={snapshot}", "--iterations", "1")
    assert run(recipe, folder, *both, *OPTIONS) == 0
    groups = pl.read_parquet(artifact(folder, "group").file("groups.parquet"))
    mixed = groups.group_by("group_id").agg(pl.col("source").unique().sort())["source"].to_list()
    assert ["ingest:otlp_json", "student"] in mixed

    # What was logged of the dev split scores policies: it is not trained on.
    splits = pl.read_parquet(snapshot / "examples.parquet").select("example_id", "split")
    assert set(groups.join(splits, on="example_id")["split"]) == {"train"}
    rollouts = pl.read_parquet(snapshot / "rollouts.parquet").join(splits, on="example_id")
    dev = rollouts.filter(pl.col("split") == "dev").height
    assert artifact(folder, "group").manifest.excluded["held_out"] == dev > 0

    # The report draws how far the logged calls can be trusted, and says why not further.
    report = json.loads((folder / "report.json").read_text())
    assert report["logged"]["fidelity"] == {"text": 10}
    page = (folder / "report.html").read_text()
    assert str(fidelity_figure(report["logged"])) in page
    assert "Why logged calls are not exact" in page
