"""Lineage both ways: of adapters, rollouts, examples and traces."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.graph import open_graph
from pipeline.store import Store
from pipeline.tracing.adapters import Adapters
from pipeline.tracing.node import SHOWN
from pipeline.tracing.trees import Tracer
from schemas.parquet import read_rows
from schemas.policies import POLICIES
from tests.test_e2e.kit import RECIPE, TINY, artifact, mmgrpo, own_recipe, run, state
from tests.test_e2e.test_snapshots import written
from tests.test_e2e.test_traces import ingest, traces

EACH = ("--set", "rollout.examples=4", "--set", "evaluate.samples=1", "--set", "adapter.modules=each")
REPLAY = ("--set", "run.replay=1", "--set", "group.staleness=1")
LOGGED = (
    *("--set", "group.unknown_policy=admit", "--set", "run.iterations=1", "--set", "rollout.rollouts=2"),
    *("--set", "train.unknown_behaviour=likelihood", "--set", "train.beta=0.01"),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run of two iterations, the second with the first's rollouts too, and an adapter for each module."""
    folder = tmp_path_factory.mktemp("tracing") / "run"
    assert run(TINY, folder, *EACH, *REPLAY) == 0
    return folder


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of one iteration on a snapshot of traces; and the snapshot."""
    place = tmp_path_factory.mktemp("logged")
    recipe = own_recipe(place / "a", recipe=RECIPE)
    snapshot = ingest(recipe, written(traces(), place / "spans.json"))
    assert run(recipe, place / "run", "--set", f"traces.snapshot={snapshot}", *LOGGED) == 0
    return place / "run", snapshot


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    """What `mmgrpo lineage … --json` says."""
    capsys.readouterr()
    assert mmgrpo("lineage", *arguments, "--json") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def ids(nodes: list[dict[str, Any]], kind: str) -> set[str]:
    """Ids of all nodes of a kind, at any depth."""
    return set(_ids(nodes, kind))


def _ids(nodes: list[dict[str, Any]], kind: str) -> Iterator[str]:
    for node in nodes:
        yield from [node["id"]] if node["kind"] == kind else []
        yield from _ids(node["of"], kind)


def test_a_rollout_is_behind_an_adapter_if_and_only_if_the_adapter_came_of_the_rollout(finished: Path) -> None:
    tracer = Tracer(open_graph(finished), finished)
    adapters = tracer.adapters
    assert len(adapters.digests) == 4, "two modules, two iterations"
    behind = {digest: ids(tracer.adapter(digest).as_json()["upstream"], "rollout") for digest in adapters.digests}
    rollouts = {
        name
        for index in range(2)
        for name in pl.read_parquet(artifact(finished, "rollout", index).file("rollouts.parquet"))["rollout_id"]
    }
    assert set().union(*behind.values()) <= rollouts
    for rollout in rollouts:
        after = ids(tracer.rollout(rollout).as_json()["downstream"], "adapter")
        assert after == {digest for digest, names in behind.items() if rollout in names}


def test_an_adapter_has_behind_it_what_the_one_that_it_was_continued_from_has(finished: Path) -> None:
    adapters = Adapters(open_graph(finished))
    for item in adapters.made:
        if item.before and item.moved:
            assert set(adapters.rollouts_behind(item.before)) <= set(adapters.rollouts_behind(item.digest))
            assert item.digest in adapters.descendants([item.before])


def test_the_adapter_of_a_module_was_moved_by_calls_of_that_module_alone(finished: Path) -> None:
    adapters = Adapters(open_graph(finished))
    for item in adapters.made:
        assert set(adapters.moving(item)["module"]) == set(item.modules)


def test_an_adapter_is_known_by_its_folder_a_copy_its_weights_its_digest_and_its_beginning(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = artifact(finished, "train", 1)
    folder = train.path / "adapters" / "plan"
    digest = told(capsys, finished, "--adapter", folder)["subject"]["id"]
    shutil.copytree(folder, tmp_path / "copy")
    shutil.copyfile(folder / "adapter_model.safetensors", tmp_path / "weights.safetensors")
    ways = (tmp_path / "copy", tmp_path / "copy" / "adapter_model.safetensors", tmp_path / "weights.safetensors")
    for way in (*ways, digest, digest[:12]):
        assert told(capsys, finished, "--adapter", way)["subject"]["id"] == digest
    rows = {row["policy"]: row for row in read_rows(train.file("policies.parquet"), POLICIES)}
    assert json.loads(rows[state(finished).policies[-1]]["adapters"])["plan"] == digest


def test_what_is_not_there_is_answered_with_where_it_was_looked_for(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"others")
    (tmp_path / "empty").mkdir()
    place = artifact(finished, "rollout").path.name
    for arguments, says in (
        (("--adapter", "nosuch"), "no such file either"),
        (("--adapter", tmp_path / "adapter_model.safetensors"), "is no adapter that"),
        (("--adapter", tmp_path / "empty"), "it has no adapter_model.safetensors"),
        (("--adapter", artifact(finished, "train").path), "name one of"),
        (("--rollout", "nosuch"), place),
        (("--rollout", ""), "give more of the"),
        (("--example", "nosuch"), "examples/"),
        (("--trace", "nosuch"), "no snapshot of traces"),
        (("--policy", "nosuch"), "there is no policy of"),
    ):
        assert mmgrpo("lineage", finished, *arguments) == 2, arguments
        assert says in capsys.readouterr().err, arguments


def test_a_long_list_is_cut_in_the_tree_and_whole_in_json(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    item = next(item for item in Adapters(open_graph(finished)).made if item.before is None)
    count = len(ids(told(capsys, finished, "--adapter", item.digest)["upstream"], "rollout"))
    assert count > SHOWN + 1
    assert mmgrpo("lineage", finished, "--adapter", item.digest) == 0
    tree = capsys.readouterr().out
    assert f"… and {count - SHOWN} more of kind 'rollout' (--json has all)" in tree
    assert tree.count(" rollout ") == SHOWN


def test_an_example_leads_to_its_rollouts_adapters_and_scores(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pl.read_parquet(artifact(finished, "rollout").file("rollouts.parquet"))
    example = rows["example_id"][0]
    found = told(capsys, finished, "--example", example[:10])
    assert found["subject"]["id"] == example
    mine = set(rows.filter(pl.col("example_id") == example)["rollout_id"])
    assert mine <= ids(found["downstream"], "rollout")
    moved = ids(told(capsys, finished, "--rollout", min(mine))["downstream"], "adapter")
    assert ids(found["downstream"], "adapter") >= moved
    dev = pl.read_parquet(next(finished.glob("artifacts/evaluate/*/scores.parquet")))
    scored = told(capsys, finished, "--example", dev["example_id"][0])
    assert len(ids(scored["downstream"], "scores")) == len(state(finished).policies)


def test_policies_of_an_earlier_recipe_are_seen_and_so_are_their_adapters(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    before = state(tmp_path / "run").policies[-1]
    digests = Adapters(open_graph(finished)).digests
    changed = ("--set", "train.learning_rate=0.02", "--set", "run.iterations=1")
    assert run(TINY, tmp_path / "run", *EACH, *REPLAY, *changed) == 0
    assert before not in state(tmp_path / "run").policies
    capsys.readouterr()
    assert mmgrpo("lineage", tmp_path / "run", "--policy", before[:12], "--json") == 0
    assert {row["iteration"] for row in json.loads(capsys.readouterr().out)} == {0, 1}
    assert told(capsys, tmp_path / "run", "--adapter", digests[-1])["subject"]["id"] == digests[-1]


def test_a_trace_leads_through_its_snapshot_to_the_adapter_that_learnt_from_it_and_back(
    logged: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, snapshot = logged
    members = pl.read_parquet(artifact(folder, "group").file("groups.parquet"))
    rows = pl.read_parquet(snapshot / "traces.parquet")
    trace = rows.join(members, on="rollout_id", how="semi")["trace"][0]
    found = told(capsys, folder, "--trace", trace)
    assert ids(found["upstream"], "snapshot") == {
        Store(folder / "artifacts").open("ingest", state(folder).setup["ingest"]).digest
    }
    (rollout,) = ids(found["downstream"], "rollout")
    back = told(capsys, folder, "--rollout", rollout)
    assert ids(back["upstream"], "trace") == {trace}
    assert ids(back["downstream"], "adapter") == ids(found["downstream"], "adapter")
    adapters = Adapters(open_graph(folder))
    for digest in adapters.digests:
        assert (rollout in adapters.rollouts_behind(digest)) == (digest in ids(found["downstream"], "adapter"))
    assert mmgrpo("lineage", folder, "--trace", "nosuch") == 2
    assert "looked through: ingest/" in capsys.readouterr().err


def test_a_run_on_traces_is_computed_anew_without_a_difference(
    logged: tuple[Path, Path], finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (logged[0], finished):
        assert mmgrpo("verify", folder, "--deep") == 0
        assert "not looked at" not in capsys.readouterr().out
