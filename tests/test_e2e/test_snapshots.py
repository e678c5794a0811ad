"""Snapshots compared, made from older ones, and exported, as a user would go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.test_e2e.kit import mmgrpo, own_recipe
from tests.test_e2e.test_traces import export, ingest, trace, traces


def written(spans: list[list[dict[str, Any]]], path: Path) -> Path:
    export([span for each in spans for span in each], path)
    return path


def onto(recipe: Path, parent: Path, *addresses: Path) -> Path:
    return ingest(recipe, *addresses, "--onto", parent)  # type: ignore[arg-type]


def manifest(snapshot: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((snapshot / "manifest.json").read_text())
    return document


def test_new_traces_onto_a_snapshot_give_the_bytes_of_all_together_and_name_their_parent(tmp_path: Path) -> None:
    recipe, every = own_recipe(tmp_path / "a"), traces()
    parent = ingest(recipe, written(every[:15], tmp_path / "old.json"))
    child = onto(recipe, parent, written(every[12:], tmp_path / "new.json"))
    other = own_recipe(tmp_path / "b")
    whole = ingest(other, tmp_path / "old.json", tmp_path / "new.json")
    assert manifest(child)["digest"] == manifest(whole)["digest"]
    assert manifest(child)["payload"]["params"]["parent"] == manifest(parent)["digest"]
    assert manifest(child)["metrics"]["onto"] == {"added": 9, "same": 3}
    assert mmgrpo("verify", child) == 0


def test_a_trace_that_comes_again_otherwise_stands_for_its_older_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, every = own_recipe(tmp_path / "a"), traces(6)
    parent = ingest(recipe, written(every, tmp_path / "old.json"))
    again = [trace(1, "w0", "other", 0.25), trace(7, "w1", "more", 1.0)]
    child = onto(recipe, parent, written(again, tmp_path / "new.json"))
    assert manifest(child)["metrics"]["onto"] == {"added": 1, "replaced": 1}
    assert pl.read_parquet(child / "rollouts.parquet")["reward"].to_list().count(0.25) == 1
    capsys.readouterr()
    assert mmgrpo("snapshot", "diff", parent, child, "--json") == 0
    told = json.loads(capsys.readouterr().out)["traces"]
    assert (told["came"], told["went"], told["changed"], told["same"]) == ([f"{7:032x}"], [], [f"{1:032x}"], 5)
    assert mmgrpo("snapshot", "diff", child, parent) == 0
    assert "traces: 0 came, 1 went, 1 changed, 5 as before" in capsys.readouterr().out


def test_the_rest_of_a_trace_that_was_cut_over_two_exports_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, every = own_recipe(tmp_path / "a"), traces(3)
    parent = ingest(recipe, written(every, tmp_path / "old.json"))
    capsys.readouterr()
    child = onto(recipe, parent, written([every[0][1:]], tmp_path / "rest.json"))
    assert manifest(child)["metrics"]["onto"] == {"replaced": 1, "shorter": 1}
    assert "1 traces have fewer spans than in the parent" in capsys.readouterr().out


def test_nothing_new_onto_a_snapshot_is_that_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, every = own_recipe(tmp_path / "a"), traces()
    parent = ingest(recipe, written(every, tmp_path / "old.json"))
    options = ("--snapshots", tmp_path / "a" / "snapshots", "--onto", parent, "--exec", "progress=off")
    assert mmgrpo("ingest", recipe, written(every[3:9], tmp_path / "some.json"), *options) == 0
    assert f"Snapshot: {parent}, which holds exactly these traces already" in capsys.readouterr().out
    assert [path.name for path in parent.parent.iterdir() if path.is_dir()] == [parent.name]


def test_a_snapshot_made_in_another_way_is_no_parent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a")
    parent = ingest(recipe, written(traces(4), tmp_path / "old.json"))
    more = ("--onto", parent, "--set", "ingest.dev=0.5", "--snapshots", tmp_path / "s", "--exec", "progress=off")
    assert mmgrpo("ingest", recipe, tmp_path / "not there, which reading would tell", *more) == 2
    assert "made with other settings of [ingest]" in (said := capsys.readouterr().err)
    assert "ingest.dev 0.0 -> 0.5" in said


def test_an_export_loads_as_a_dataset_with_its_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    recipe = own_recipe(tmp_path / "a")
    snapshot = ingest(recipe, written(traces(6), tmp_path / "spans.json"))
    folder = tmp_path / "exported"
    assert mmgrpo("snapshot", "export", snapshot, folder) == 0
    assert mmgrpo("snapshot", "export", snapshot, folder) == 2  # nothing is overwritten
    cache = str(tmp_path / "cache")
    rows = {
        name: datasets.load_dataset(str(folder), name, cache_dir=cache)["train"].num_rows
        for name in ("invocations", "rollouts", "examples", "traces")
    }
    assert rows == {"invocations": 6, "rollouts": 6, "examples": 6, "traces": 6}
    assert pl.scan_parquet(folder / "data" / "left_out.parquet").collect().is_empty()
    for path in sorted(snapshot.glob("*.parquet")):
        if path.stem == "left_out":
            continue  # `datasets` has no form for a table without rows
        loaded = datasets.load_dataset("parquet", data_files=str(path), cache_dir=cache)["train"]
        assert loaded.num_rows == pl.scan_parquet(path).collect().height
    card = datasets.load_dataset_builder(str(folder), "invocations", cache_dir=cache)
    assert card.info.features is not None
    text = (folder / "README.md").read_text()
    assert "license: other" in text
    assert "| `text` | 6 |" in text
    assert manifest(snapshot)["digest"] in text
