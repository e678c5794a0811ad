"""From exported traces to a trained adapter, as a user would go."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.store import Store
from schemas.examples import example_id
from tests.test_e2e.kit import RECIPE, mmgrpo, own_recipe, run, state

ADMITTED = (
    RECIPE.replace("rollouts = 4\n", "rollouts = 2\n")
    + '[group]\nunknown_policy = "admit"\n[traces]\nsnapshot = "SNAPSHOT"\n'
)


def attribute(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, float):
        return {"key": key, "value": {"doubleValue": value}}
    return {"key": key, "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}


def trace(number: int, word: str, text: str, score: float | None) -> list[dict[str, Any]]:
    """Two spans: the program with its evaluation, and one call of `write`."""
    begin = 1_800_000_000_000_000_000 + number * 10**9
    events = (
        []
        if score is None
        else [{"name": "gen_ai.evaluation.result", "attributes": [attribute("gen_ai.evaluation.score.value", score)]}]
    )
    call = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": word}]}],
        "gen_ai.output.messages": [{"role": "assistant", "parts": [{"type": "text", "content": text}]}],
        "gen_ai.request.model": "some-model",
        "mmgrpo.module": "write",
    }
    root = {"input.value": {"word": word}, "openinference.span.kind": "CHAIN"}
    shared = {"traceId": f"{number:032x}", "startTimeUnixNano": str(begin), "endTimeUnixNano": str(begin + 10**8)}
    return [
        {
            **shared,
            "spanId": f"{2 * number:016x}",
            "name": "app",
            "events": events,
            "attributes": [attribute(*item) for item in root.items()],
        },
        {
            **shared,
            "spanId": f"{2 * number + 1:016x}",
            "parentSpanId": f"{2 * number:016x}",
            "name": "chat",
            "attributes": [attribute(*item) for item in call.items()],
        },
    ]


def export(spans: list[dict[str, Any]], path: Path) -> None:
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))


def traces(count: int = 24) -> list[list[dict[str, Any]]]:
    stream = random.Random(0)
    texts = ["".join(stream.choice("abcDEF") for _ in range(6)) for _ in range(count)]
    return [
        trace(1 + place, f"w{place % 6}", text, sum(map(str.islower, text)) / 6) for place, text in enumerate(texts)
    ]


def ingest(recipe: Path, *addresses: Path) -> Path:
    snapshots = recipe.parent / "snapshots"
    assert mmgrpo("ingest", recipe, *addresses, "--snapshots", snapshots, "--exec", "progress=off") == 0
    return max((path for _, path in Store(snapshots).all()), key=lambda path: path.stat().st_mtime)


def test_exported_traces_train_an_adapter_and_lineage_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = own_recipe(tmp_path / "a", recipe=ADMITTED.replace('[traces]\nsnapshot = "SNAPSHOT"\n', ""))
    export([span for spans in traces() for span in spans], tmp_path / "spans.json")
    snapshot = ingest(recipe, tmp_path / "spans.json")
    assert "24 traces: 24 rollouts of 6 examples, 6 of them with two or more; 24 calls" in capsys.readouterr().out
    refused = ("--set", f"traces.snapshot={snapshot}", "--set", "run.iterations=1")
    assert run(recipe, tmp_path / "run", *refused) == 3  # nobody knows what sampled them
    assert "unknown_behaviour" in capsys.readouterr().err
    options = (*refused, "--set", "train.unknown_behaviour=likelihood", "--set", "train.beta=0.01")
    assert run(recipe, tmp_path / "run", *options) == 0
    trained = next(path for stage, path in Store(tmp_path / "run" / "artifacts").all() if stage == "train")
    sources = json.loads((trained / "manifest.json").read_text())["metrics"]["sources"]
    assert sources["ingest:otlp_json"]["members"] > 0
    assert mmgrpo("verify", tmp_path / "run") == 0
    assert mmgrpo("report", tmp_path / "run") == 0
    rollouts = pl.read_parquet(snapshot / "rollouts.parquet")
    capsys.readouterr()
    assert mmgrpo("lineage", tmp_path / "run", "--policy", state(tmp_path / "run").policies[-1], "--json") == 0
    told = capsys.readouterr().out
    assert sum(name in told for name in rollouts["rollout_id"]) > 0


def test_a_snapshot_depends_on_neither_order_nor_files_nor_repetition(tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path / "a")
    spans = [span for spans in traces() for span in spans]
    export(spans, tmp_path / "one.json")
    once = ingest(recipe, tmp_path / "one.json")
    random.Random(1).shuffle(spans)
    (tmp_path / "cut").mkdir()
    for place in range(3):
        export(spans[place::3], tmp_path / "cut" / f"{place}.json")
    export(spans[:7], tmp_path / "cut" / "again.json")
    assert ingest(recipe, tmp_path / "cut") == once
    other = own_recipe(tmp_path / "b")
    assert ingest(other, tmp_path / "cut").name == once.name
    left, right = (json.loads((path / "manifest.json").read_text()) for path in (once, ingest(other, tmp_path / "cut")))
    assert left["digest"] == right["digest"]
    assert left["metrics"] | {"repeated_spans": 0} == right["metrics"] | {"repeated_spans": 0}


def test_a_snapshot_made_with_other_settings_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a")
    export([span for spans in traces() for span in spans], tmp_path / "spans.json")
    snapshot = ingest(recipe, tmp_path / "spans.json")
    named = (
        "--set",
        f"traces.snapshot={snapshot}",
        "--set",
        "ingest.repeated=mean",
        "--set",
        "group.unknown_policy=admit",
    )
    assert run(recipe, tmp_path / "run", *named) == 2
    assert "run `mmgrpo ingest` again" in capsys.readouterr().err


def test_rollouts_of_nobody_knows_what_are_refused_before_others_are_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = own_recipe(tmp_path / "a", recipe=RECIPE)
    export([span for spans in traces() for span in spans], tmp_path / "spans.json")
    snapshot = ingest(recipe, tmp_path / "spans.json")
    assert run(recipe, tmp_path / "run", "--set", f"traces.snapshot={snapshot}") == 2
    said = capsys.readouterr().err
    assert "nobody knows what sampled 24 of its rollouts" in said
    assert "train.unknown_behaviour = 'likelihood'" in said
    assert not (tmp_path / "run" / "artifacts").exists()


def test_a_run_needs_no_data_but_a_snapshot(tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path / "a")
    export([span for spans in traces() for span in spans], tmp_path / "spans.json")
    split = ("--set", "ingest.dev=0.4")
    snapshots = tmp_path / "snapshots"
    quiet = ("--snapshots", snapshots, "--exec", "progress=off")
    assert mmgrpo("ingest", recipe, tmp_path / "spans.json", *quiet, *split) == 0
    snapshot = Store(snapshots).all()[0][1]
    (recipe.parent / "examples.csv").unlink()
    known = pl.read_parquet(snapshot / "examples.parquet")
    assert set(known["split"]) == {"train", "dev"}
    named = ("--set", f"examples.path={snapshot}", "--set", "rollout.examples=2", "--set", "run.iterations=1")
    assert run(recipe, tmp_path / "run", *named, *split) == 0
    rollouts = next(path for stage, path in Store(tmp_path / "run" / "artifacts").all() if stage == "rollout")
    train = known.filter(pl.col("split") == "train")["example_id"]
    assert set(pl.read_parquet(rollouts / "rollouts.parquet")["example_id"]) <= set(train)


def test_ids_that_are_keyed_stay_keyed_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = own_recipe(tmp_path / "a")
    export([span for spans in traces() for span in spans], tmp_path / "spans.json")
    keyed = ("--set", "ingest.key_env=TRACE_SECRET", "--set", "ingest.dev=0.4")
    args = ("ingest", recipe, tmp_path / "spans.json", "--snapshots", tmp_path / "s", "--exec", "progress=off", *keyed)
    assert mmgrpo(*args) == 2
    monkeypatch.setenv("TRACE_SECRET", "a secret")
    assert mmgrpo(*args) == 0
    snapshot = Store(tmp_path / "s").all()[0][1]
    ids = set(pl.read_parquet(snapshot / "examples.parquet")["example_id"])
    assert not ids & {example_id({"word": f"w{place}"}) for place in range(6)}
    assert "a secret" not in (snapshot / "manifest.json").read_text()
    named = ("--set", f"examples.path={snapshot}", "--set", "rollout.examples=2", "--set", "run.iterations=1")
    assert run(recipe, tmp_path / "run", *named, *keyed) == 0
    rollouts = next(path for stage, path in Store(tmp_path / "run" / "artifacts").all() if stage == "rollout")
    assert set(pl.read_parquet(rollouts / "rollouts.parquet")["example_id"]) <= ids


def test_logged_outputs_are_scored_anew_by_the_programs_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = own_recipe(tmp_path / "a")  # its metric is the share of small letters in the output
    spans = [span for found in traces() for span in found]
    for span in spans:
        if span["name"] == "app":
            span["events"] = []
            said = next(other for other in spans if other.get("parentSpanId") == span["spanId"])
            answer = next(item for item in said["attributes"] if item["key"] == "gen_ai.output.messages")
            text = json.loads(answer["value"]["stringValue"])[0]["parts"][0]["content"]
            span["attributes"].append(attribute("output.value", text))
    spans[0]["attributes"] = [item for item in spans[0]["attributes"] if item["key"] != "output.value"]
    export(spans, tmp_path / "spans.json")
    assert "no_score" in _account(recipe, tmp_path, capsys)
    assert "rollouts without a reward: no_output 1" in _account(recipe, tmp_path, capsys, "--rescore")
    snapshots = [pl.read_parquet(path / "rollouts.parquet") for _, path in Store(tmp_path / "s").all()]
    rescored = next(frame for frame in snapshots if frame["reward"].null_count() < frame.height).drop_nulls("reward")
    assert rescored.height == 23
    for text, reward in rescored.select("output", "reward").iter_rows():
        assert reward == sum(map(str.islower, json.loads(text))) / len(json.loads(text))


def _account(recipe: Path, folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    quiet = ("--snapshots", folder / "s", "--exec", "progress=off")
    assert mmgrpo("ingest", recipe, folder / "spans.json", *quiet, *more) == 0
    return capsys.readouterr().out
