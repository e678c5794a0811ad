"""Traces are forgotten: their bytes go, what they reached is named and kept in, and training begins again without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.ingest_spooling import FORGETTING, spooled_in
from pipeline.locks import hold
from pipeline.store import Store
from pipeline.tainted import read_tainted
from tests.test_e2e.kit import RECIPE, artifact, mmgrpo, own_recipe, run, state
from tests.test_e2e.test_snapshots import manifest, written
from tests.test_e2e.test_traces import ingest, traces

ONE = f"{1:032x}"
OPTIONS = (
    *("--set", "group.unknown_policy=admit", "--set", "run.iterations=2", "--set", "rollout.rollouts=2"),
    *("--set", "train.unknown_behaviour=likelihood", "--set", "train.beta=0.01"),
)


def named(snapshot: Path) -> tuple[str, ...]:
    return ("--set", f"traces.snapshot={snapshot}", *OPTIONS)


def texts_below(folder: Path) -> str:
    """All that can be read below a folder: tables row by row, other files as they are."""
    told = [str(pl.read_parquet(path).to_dicts()) for path in folder.rglob("*.parquet")]
    others = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".parquet")
    return "".join(told + [path.read_bytes().decode(errors="replace") for path in others])


def completion(spans: list[dict[str, Any]]) -> str:
    """What the model wrote in a trace."""
    logged = {item["key"]: item["value"] for item in spans[1]["attributes"]}["gen_ai.output.messages"]["stringValue"]
    return str(json.loads(logged)[0]["parts"][0]["content"])


def trained_trace(folder: Path, snapshot: Path) -> str:
    """A trace that iteration 0 trained on."""
    members = pl.read_parquet(artifact(folder, "group").file("groups.parquet"))
    logged = pl.read_parquet(snapshot / "traces.parquet")
    return str(logged.join(members, on="rollout_id", how="semi")["trace"][0])


def test_a_forgotten_trace_is_gone_and_what_it_reached_is_blocked_until_trained_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, folder, every = own_recipe(tmp_path / "a", recipe=RECIPE), tmp_path / "run", traces()
    snapshot = ingest(recipe, written(every, tmp_path / "spans.json"))
    assert run(recipe, folder, *named(snapshot)) == 0
    before = state(folder)
    one = trained_trace(folder, snapshot)
    said = completion(every[int(one, 16) - 1])
    assert said in texts_below(snapshot)
    snapshots = ("--snapshots", tmp_path / "a" / "snapshots")
    capsys.readouterr()
    assert mmgrpo("forget", "--trace", one, *snapshots, "--runs", folder, "--reason", "ticket 7", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    after = Path(told["snapshots"][0][1])
    assert told["traces"] == 1
    assert said not in texts_below(tmp_path / "a" / "snapshots") + texts_below(folder)
    assert one not in texts_below(tmp_path / "a" / "snapshots") + texts_below(folder)

    # What it had reached is told, transitively: both adapters learnt from it, the second through the first.
    lines = told["runs"][0]["lines"]
    for beginning, count in {"adapter, blocked": 2, "groups": 2, "scores": 2, "rollouts": 1, "purged": 3}.items():
        assert sum(line.startswith(beginning) for line in lines) == count, (beginning, lines)
    tainted = read_tainted(folder)
    assert tainted is not None
    assert set(tainted.policies) == set(before.policies[1:])
    assert tainted.clean == before.policies[0]
    assert not (folder / "report.html").exists()

    # Verify knows why the bytes are gone; nothing leaves the run; a run says what to do.
    for where in (snapshot, folder):
        assert mmgrpo("verify", where) == 0
        assert "deleted by request of" in (out := capsys.readouterr().out)
        assert "(ticket 7)" in out
    assert mmgrpo("verify", after) == 0
    for iteration in ("0", "1"):
        assert mmgrpo("export", "groups", folder, tmp_path / "groups.parquet", "--iteration", iteration) == 3
        assert f"set traces.snapshot to {after}" in capsys.readouterr().err
    assert mmgrpo("report", folder) == 0
    page = (folder / "report.html").read_text()
    assert "deleted by request" in page
    assert said not in page + (folder / "report.json").read_text()
    assert mmgrpo("plan", recipe, "--run-dir", folder, *named(snapshot)) == 2
    assert run(recipe, folder, *named(snapshot)) == 2
    assert f"set traces.snapshot to {after}" in capsys.readouterr().err

    # From the last clean policy on, all is made anew without it.
    assert run(recipe, folder, *named(after)) == 0
    assert state(folder).policies[0] == before.policies[0]
    assert not set(state(folder).policies[1:]) & set(tainted.policies)
    assert mmgrpo("export", "groups", folder, tmp_path / "groups.parquet") == 0
    assert (folder / "report.html").exists()


def test_what_was_forgotten_does_not_come_back_and_is_forgotten_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, every = own_recipe(tmp_path / "a"), traces(8)
    snapshot = ingest(recipe, written(every, tmp_path / "spans.json"))
    snapshots = ("--snapshots", tmp_path / "a" / "snapshots")
    left = [snapshot.parent / ".0123456789abcdef.partial", tmp_path / "a" / "snapshots" / ".spool-0123456789abcdef-1"]
    for folder in left:  # of ingests that were killed
        folder.mkdir()
        (folder / "000").write_text(completion(every[0]))
    assert mmgrpo("forget", "--trace", ONE, *snapshots, "--runs") == 0
    assert not any(folder.exists() for folder in left)
    after = next(path for _, path in Store(tmp_path / "a" / "snapshots").all() if path != snapshot)
    params = manifest(after)["payload"]["params"]
    assert params["parent"] == manifest(snapshot)["digest"]
    again = ingest(recipe, tmp_path / "spans.json")
    assert manifest(again)["digest"] == manifest(after)["digest"]
    capsys.readouterr()
    assert mmgrpo("forget", "--trace", ONE, *snapshots, "--runs") == 0
    assert "Forgotten before" in capsys.readouterr().out
    assert mmgrpo("forget", "--trace", "nobody", *snapshots, "--runs") == 2
    assert mmgrpo("forget", *snapshots) == 2
    assert mmgrpo("snapshot", "diff", snapshot, after) == 3
    assert "deleted by request" in capsys.readouterr().err


def test_an_ingest_and_who_forgets_keep_each_other_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An ingest has read what was to be forgotten when it began: what comes to that later would come back with it."""
    recipe, snapshots = own_recipe(tmp_path / "a"), tmp_path / "a" / "snapshots"
    spans = written(traces(8), tmp_path / "spans.json")
    snapshot = ingest(recipe, spans)
    arguments = ("forget", "--trace", ONE, "--snapshots", snapshots, "--runs")
    with spooled_in(snapshots), spooled_in(snapshots):  # ingests do not keep each other out
        assert mmgrpo(*arguments) == 75
        assert f"folder of snapshots {snapshots} is in use by another process" in capsys.readouterr().err
    assert (snapshot / "traces.parquet").exists()
    with hold(snapshots / FORGETTING, "it", here=True):
        assert mmgrpo("ingest", recipe, spans, "--snapshots", snapshots, "--exec", "progress=off") == 75
    assert mmgrpo(*arguments) == 0
    assert not (snapshot / "traces.parquet").exists()


def test_all_traces_of_a_user_are_forgotten_by_the_key_that_only_the_secret_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_SECRET", "abc")
    more = '[ingest]\nkey_env = "OUR_SECRET"\n[ingest.redact]\nkinds = "all"\n'
    recipe, every = own_recipe(tmp_path / "a", recipe=RECIPE + more), traces(8)
    for spans in every[:3]:
        spans[0]["attributes"].append({"key": "user.id", "value": {"stringValue": "anna"}})
    snapshot = ingest(recipe, written(every, tmp_path / "spans.json"))
    assert "anna" not in texts_below(snapshot)
    arguments = ("forget", "--user", "anna", "--snapshots", tmp_path / "a" / "snapshots", "--runs")
    monkeypatch.delenv("OUR_SECRET")
    assert mmgrpo(*arguments) == 2
    assert "export OUR_SECRET=" in capsys.readouterr().err
    monkeypatch.setenv("OUR_SECRET", "abc")
    assert mmgrpo(*arguments) == 0
    assert "3 traces forgotten" in capsys.readouterr().out
    after = next(path for _, path in Store(tmp_path / "a" / "snapshots").all() if path != snapshot)
    assert pl.read_parquet(after / "traces.parquet")["user"].to_list() == [None] * 5
