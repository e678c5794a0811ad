"""What policies are scored on is not trained on, whoever logged it and under whatever id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from schemas.examples import EXAMPLES, example_id, example_row
from schemas.parquet import write_table
from stages.contract import Artifact, Inputs
from stages.grouping.held_out import ROLE, SPLIT, held_out
from tests.test_stages.group_kit import (
    MemoryOut,
    artifact,
    call,
    policies_artifact,
    recipe,
    rollout,
    rollout_artifact,
    run_stage,
)

WORDS = {"a": "train", "b": "dev", "c": "test"}
IDS = {word: example_id({"word": word}) for word in WORDS}


def examples_artifact(folder: Path, ids: dict[str, str] = IDS) -> Artifact:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {**example_row(split, {"word": word}, None, None), "example_id": ids[word]} for word, split in WORDS.items()
    ]
    write_table(sorted(rows, key=lambda row: str(row["example_id"])), folder / "examples.parquet", EXAMPLES)
    return artifact(folder, "examples")


def given(tmp_path: Path) -> dict[str, Artifact]:
    """Two rollouts of each example, one of them logged."""
    halves = []
    for source, index in (("student", 0), ("ingest:otlp_json", 1)):
        rows = [{**rollout(name, index, float(index)), "source": source} for name in sorted(IDS.values())]
        halves.append(rollout_artifact(tmp_path / source, rows, [call(row["rollout_id"], 0, "m", 0) for row in rows]))
    return {"rollout": halves[0], "rollout.snapshot": halves[1], "policies": policies_artifact(tmp_path / "p")}


def grouped(tmp_path: Path, artifacts: dict[str, Artifact]) -> tuple[set[str], MemoryOut]:
    _, out = run_stage(tmp_path, artifacts, recipe(k=2), **{SPLIT: "train"})
    return set(pl.read_parquet(out.committed()["groups.parquet"])["example_id"]), out


def test_rollouts_of_examples_of_other_splits_are_left_out_and_counted(tmp_path: Path) -> None:
    artifacts = given(tmp_path)
    assert grouped(tmp_path, artifacts)[0] == set(IDS.values())
    members, out = grouped(tmp_path, {**artifacts, ROLE: examples_artifact(tmp_path / "e")})
    assert members == {IDS["a"]}
    assert out.excluded == {"held_out": 4}


def test_an_example_that_the_run_does_not_have_is_trained_on(tmp_path: Path) -> None:
    others = {"a": "x" * 16, "b": "y" * 16, "c": "z" * 16}
    members, _ = grouped(tmp_path, {**given(tmp_path), ROLE: examples_artifact(tmp_path / "e", others)})
    assert members == set(IDS.values())


def test_what_is_held_out_is_known_by_its_inputs_where_a_snapshot_has_keyed_its_ids(tmp_path: Path) -> None:
    keyed = {word: f"{place:016x}" for place, word in enumerate(WORDS)}
    snapshot = examples_artifact(tmp_path / "s", keyed)
    manifest = snapshot.manifest.model_copy(update={"payload": {"params": {"key_id": "k"}}})
    artifacts = {ROLE: examples_artifact(tmp_path / "e"), "rollout.snapshot": replace(snapshot, manifest=manifest)}
    found = held_out(Inputs(artifacts, {SPLIT: "train"}))
    assert found == {IDS["b"], IDS["c"], keyed["b"], keyed["c"]}
