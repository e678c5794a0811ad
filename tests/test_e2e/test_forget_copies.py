"""Copies of a snapshot in runs: each is purged, whoever else has the same bytes, and whenever a run is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.store import Store
from pipeline.tainted import read_tainted
from tests.test_e2e.kit import RECIPE, mmgrpo, own_recipe, run
from tests.test_e2e.test_forget import ONE, OPTIONS, completion, texts_below
from tests.test_e2e.test_snapshots import written
from tests.test_e2e.test_traces import ingest, traces

SHORT = (*OPTIONS, "--set", "run.iterations=1", "--set", "run.evaluate_every=0")


def test_two_snapshots_of_the_same_bytes_in_one_run_are_both_purged(tmp_path: Path) -> None:
    recipe, folder, every = own_recipe(tmp_path / "a", recipe=RECIPE), tmp_path / "run", traces()
    spans = written(every, tmp_path / "spans.json")
    for text in (RECIPE, RECIPE + '[ingest]\nrepeated = "mean"\n'):  # no score is repeated
        recipe = own_recipe(tmp_path / "a", recipe=text)
        snapshot = ingest(recipe, spans)
        assert run(recipe, folder, "--set", f"traces.snapshot={snapshot}", *SHORT) == 0
    taken = [path for stage, path in Store(folder / "artifacts").all() if stage == "ingest"]
    assert len(taken) == 2
    assert len({json.loads((path / "manifest.json").read_text())["digest"] for path in taken}) == 1
    snapshots = tmp_path / "a" / "snapshots"
    assert mmgrpo("forget", "--trace", ONE, "--snapshots", snapshots, "--runs", folder) == 0
    assert completion(every[0]) not in texts_below(folder) + texts_below(snapshots)
    assert mmgrpo("verify", folder) == 0
    tainted = read_tainted(folder)
    assert tainted is not None
    after = Path(str(tainted.successor))  # of the one that was taken in last, with the recipe of now
    assert run(recipe, folder, "--set", f"traces.snapshot={after}", *SHORT) == 0


def test_the_folder_of_judges_answers_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = own_recipe(tmp_path / "a")
    ingest(recipe, written(traces(4), tmp_path / "spans.json"))
    monkeypatch.setenv("MMGRPO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "judges" / "ab").mkdir(parents=True)
    assert mmgrpo("forget", "--trace", ONE, "--snapshots", tmp_path / "a" / "snapshots", "--runs") == 0
    assert f"{tmp_path / 'cache' / 'judges'}: answers of judges" in capsys.readouterr().out


def test_a_run_that_is_named_after_the_snapshots_have_forgotten_forgets_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, folder, every = own_recipe(tmp_path / "a", recipe=RECIPE), tmp_path / "run", traces()
    spans = written(every, tmp_path / "spans.json")
    assert run(recipe, folder, "--set", f"traces.snapshot={ingest(recipe, spans)}", *SHORT) == 0
    snapshots = tmp_path / "a" / "snapshots"
    assert mmgrpo("forget", "--trace", ONE, "--snapshots", snapshots, "--runs") == 0
    assert completion(every[0]) in texts_below(folder)
    capsys.readouterr()
    again = ("forget", "--trace", ONE, "--snapshots", snapshots, "--runs", folder)
    assert mmgrpo(*again) == 0
    said = capsys.readouterr().out
    assert "purged: artifacts/ingest/" in said
    assert "its successor is" in said
    assert completion(every[0]) not in texts_below(folder)
    assert mmgrpo(*again) == 0
    assert "Forgotten before" in capsys.readouterr().out
    assert mmgrpo("verify", folder) == 0


def test_what_only_a_run_had_taken_in_does_not_come_back_either(tmp_path: Path) -> None:
    recipe, folder, every = own_recipe(tmp_path / "a", recipe=RECIPE), tmp_path / "run", traces()
    spans = written(every, tmp_path / "spans.json")
    assert run(recipe, folder, "--set", f"traces.snapshot={ingest(recipe, spans)}", *SHORT) == 0
    (tmp_path / "a" / "snapshots").rename(tmp_path / "elsewhere")
    snapshots = tmp_path / "a" / "snapshots"
    assert mmgrpo("forget", "--trace", ONE, "--snapshots", snapshots, "--runs", folder) == 0
    assert completion(every[0]) not in texts_below(folder) + texts_below(ingest(recipe, spans))
