"""What forgotten traces reach by other ways than groups: as a run's data, and through a teacher into another run."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from pipeline.store import Store
from pipeline.tainted import read_tainted
from tests.test_e2e.kit import artifact, mmgrpo, own_recipe, run, state
from tests.test_e2e.test_forget import named, texts_below, trained_trace
from tests.test_e2e.test_snapshots import written
from tests.test_e2e.test_traces import ingest, trace, traces

SECRET = "w0rd-of-one"


def test_examples_that_only_a_forgotten_trace_had_leave_the_run_that_had_its_data_from_the_snapshot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, folder = own_recipe(tmp_path / "a"), tmp_path / "run"
    split = ("--set", "ingest.dev=0.3")
    one = trace(99, SECRET, "abcdef", 0.5)
    snapshots = tmp_path / "a" / "snapshots"
    spans = written([*traces(), one], tmp_path / "spans.json")
    assert mmgrpo("ingest", recipe, spans, "--snapshots", snapshots, "--exec", "progress=off", *split) == 0
    ((_, snapshot),) = Store(snapshots).all()
    (recipe.parent / "examples.csv").unlink()
    train = pl.read_parquet(snapshot / "examples.parquet").filter(pl.col("split") == "train").height
    sizes = ("--set", f"rollout.examples={train}", "--set", "rollout.rollouts=2", "--set", "run.iterations=1")
    assert run(recipe, folder, "--set", f"examples.path={snapshot}", *split, *sizes) == 0
    before = state(folder)
    assert SECRET in texts_below(folder)
    capsys.readouterr()

    identity = f"{99:032x}"
    arguments = ("--snapshots", snapshots, "--runs", folder, folder, "--json")
    assert mmgrpo("forget", "--trace", identity, *arguments) == 0
    told = json.loads(capsys.readouterr().out)
    lines = told["runs"][0]["lines"]
    assert SECRET not in texts_below(folder) + texts_below(snapshots)
    assert any(line.startswith("purged: artifacts/examples/") for line in lines), lines
    assert any(line.startswith("purged: artifacts/rollout/") for line in lines), lines
    tainted = read_tainted(folder)
    assert tainted is not None
    assert set(tainted.policies) == set(before.policies[1:])
    assert mmgrpo("verify", folder) == 0
    assert mmgrpo("export", "groups", folder, tmp_path / "groups.parquet") == 3
    assert run(recipe, folder, "--set", f"examples.path={snapshot}", *split, *sizes) == 2
    after = Path(told["snapshots"][0][1])
    assert f"set examples.path to {after}" in capsys.readouterr().err
    sizes = ("--set", f"rollout.examples={train - 1}", *sizes[2:])
    assert run(recipe, folder, "--set", f"examples.path={after}", *split, *sizes) == 0
    assert not set(state(folder).policies[1:]) & set(tainted.policies)


def test_what_a_teacher_learnt_from_forgotten_traces_is_followed_into_the_run_that_it_taught(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, first, second = own_recipe(tmp_path / "a"), tmp_path / "first", tmp_path / "second"
    snapshot = ingest(recipe, written(traces(), tmp_path / "spans.json"))
    assert run(recipe, first, *named(snapshot), "--set", "run.iterations=1") == 0
    adapter = artifact(first, "train").file("adapter")
    (recipe.parent / "recipe.toml").write_text(
        recipe.read_text() + f'[teachers.old]\nrollouts = 2\nadapter = "{adapter}"\n'
    )
    more = ("--set", "run.iterations=1", "--set", "seed=1", "--set", "train.unknown_behaviour=likelihood")
    assert run(recipe, second, *more) == 0
    taught = Store(second / "artifacts").open("teacher", state(second).iterations[0]["teacher.old"])
    learnt = state(second).policies[1:]
    one = trained_trace(first, snapshot)
    capsys.readouterr()
    snapshots = ("--snapshots", tmp_path / "a" / "snapshots")
    assert mmgrpo("forget", "--trace", one, *snapshots, "--runs", second, first, "--json") == 0
    told = {item["run"]: item for item in json.loads(capsys.readouterr().out)["runs"]}
    assert any(line.startswith("a teacher's rollouts: ") for line in told[str(second)]["lines"])
    tainted = read_tainted(second)
    assert tainted is not None
    assert taught.digest in tainted.artifacts
    assert set(tainted.policies) == set(learnt)
    assert mmgrpo("export", "groups", second, tmp_path / "groups.parquet") == 3
