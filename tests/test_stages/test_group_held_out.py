"""What policies are scored on is not trained on, whoever logged it and under whatever id."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from schemas.examples import EXAMPLES, example_id, example_row
from schemas.parquet import write_table
from stages.contract import Artifact, Inputs
from stages.grouping.held_out import ROLE, SPLIT, held_out
from tests.test_stages.group_kit import (
    MemoryOut,
    Row,
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


def rows_of(ids: dict[str, str]) -> list[Row]:
    return [
        {**example_row(split, {"word": word}, None, None), "example_id": ids[word]} for word, split in WORDS.items()
    ]


def table_of(folder: Path, rows: list[Row]) -> Artifact:
    folder.mkdir(parents=True, exist_ok=True)
    write_table(sorted(rows, key=lambda row: str(row["example_id"])), folder / "examples.parquet", EXAMPLES)
    return artifact(folder, "examples")


def examples_artifact(folder: Path, ids: dict[str, str] = IDS) -> Artifact:
    return table_of(folder, rows_of(ids))


def given(tmp_path: Path) -> dict[str, Artifact]:
    """Two rollouts of each example, one of them logged."""
    halves = []
    for source, index in (("student", 0), ("ingest:otlp_json", 1)):
        rows = [{**rollout(name, index, float(index)), "source": source} for name in sorted(IDS.values())]
        halves.append(rollout_artifact(tmp_path / source, rows, [call(row["rollout_id"], 0, "m", 0) for row in rows]))
    return {"rollout": halves[0], "rollout.snapshot": halves[1], "policies": policies_artifact(tmp_path / "p")}


def grouped(tmp_path: Path, artifacts: dict[str, Artifact]) -> tuple[set[str], MemoryOut]:
    _, out = run_stage(tmp_path, artifacts, recipe(k=2), params={SPLIT: "train"})
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


KEYED = {word: f"{place:016x}" for place, word in enumerate(WORDS)}


def known(tmp_path: Path, ours: list[Row], theirs: list[Row]) -> frozenset[str]:
    """What is held out of a run with these examples, by their ids in the run and in a snapshot."""
    artifacts = {ROLE: table_of(tmp_path / "e", ours), "rollout.snapshot": table_of(tmp_path / "s", theirs)}
    return held_out(Inputs(artifacts, {SPLIT: "train"}))


@pytest.mark.parametrize(("ours", "theirs"), [(IDS, KEYED), (KEYED, IDS), (KEYED, {word: word for word in WORDS})])
def test_what_is_held_out_is_known_by_its_inputs_whoever_has_keyed_its_ids(
    tmp_path: Path, ours: dict[str, str], theirs: dict[str, str]
) -> None:
    found = known(tmp_path, rows_of(ours), rows_of(theirs))
    assert found == {ours["b"], ours["c"], theirs["b"], theirs["c"]}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"word": "3"}, {"word": 3}),
        ({"word": "1.5", "more": "true"}, {"more": True, "word": 1.5}),
        ({"word": "two words"}, {"word": "two words\n"}),
        ({"word": "two words "}, {"word": "\ttwo  words"}),
        ({"word": 'the "end"'}, {"word": 'the "end" '}),
    ],
)
def test_what_is_held_out_is_known_however_a_log_writes_it_down(
    tmp_path: Path, ours: dict[str, object], theirs: dict[str, object]
) -> None:
    ours_row, theirs_row = example_row("dev", ours, None, None), example_row("train", theirs, None, None)
    others = example_row("train", {"word": "other words"}, None, None)
    assert known(tmp_path, [ours_row], [theirs_row, others]) == {ours_row["example_id"], theirs_row["example_id"]}


def test_an_example_of_the_trained_split_is_trained_on_though_one_much_like_it_is_held_out(tmp_path: Path) -> None:
    train, dev = example_row("train", {"word": "a "}, None, None), example_row("dev", {"word": "a"}, None, None)
    assert known(tmp_path, [train, dev], [train, dev]) == {dev["example_id"]}


@pytest.mark.parametrize(
    ("logged", "held"),
    [("mail <EMAIL_1> now", True), ("<EMAIL_1> and <EMAIL_2> now", False), ("mail <EMAIL_1> later", False)],
)
def test_what_is_held_out_is_known_though_something_was_taken_out_of_the_log(
    tmp_path: Path, logged: str, held: bool
) -> None:
    dev = example_row("dev", {"word": "mail ada@example.org now"}, None, None)
    others = [example_row("dev", {"word": word}, None, None) for word in ("a", "mail", "z")]
    there = example_row("train", {"word": logged}, None, None)
    snapshot = table_of(tmp_path / "s", [there])
    told = snapshot.manifest.model_copy(update={"metrics": {"redacted": {"EMAIL": 1}}})
    artifacts = {ROLE: table_of(tmp_path / "e", [dev, *others]), "rollout.snapshot": Artifact(snapshot.path, told)}
    found = held_out(Inputs(artifacts, {SPLIT: "train"}))
    assert (there["example_id"] in found) == held
