from __future__ import annotations

import csv
import gzip
import io
import tomllib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.tasks import prepare_banking77, prepare_pupa, prepare_tiny
from pipeline.tasks.prepare import main
from pipeline.tasks.text import normalise
from schemas.errors import DataError
from schemas.recipe import Recipe, with_preset

DATA = Path(__file__).parents[2] / "data"
TASKS = {"tiny": "word", "banking77": "text", "banking77_8": "text", "pupa": "query", "multihop": "question"}


def rows(task: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(DATA / task / "examples.parquet").to_pylist()
    return found


def recipe(task: str) -> Recipe:
    return Recipe.model_validate(with_preset(tomllib.loads((DATA / task / "recipe.toml").read_text())))


def sizes(task: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows(task):
        found[row["split"]] = found.get(row["split"], 0) + 1
    return found


def csv_text(names: list[str], records: list[list[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows(records)
    return text.getvalue()


@pytest.mark.parametrize(("task", "column"), TASKS.items())
def test_no_text_stands_twice_in_the_shipped_examples(task: str, column: str):
    texts = [normalise(row[column]) for row in rows(task)]
    assert len(texts) == len(set(texts))


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("tiny", {"train": 16, "dev": 8, "test": 8}),
        ("banking77", {"train": 250, "dev": 500}),
        ("banking77_8", {"train": 400, "dev": 100, "test": 200}),
        ("pupa", {"train": 111, "dev": 221}),
        ("multihop", {"train": 202, "dev": 100, "test": 150}),
    ],
)
def test_shipped_splits_have_the_sizes_that_source_md_states(task: str, expected: dict[str, int]):
    assert sizes(task) == expected
    page = (DATA / task / "SOURCE.md").read_text()
    assert all(f"{split} {count}" in page for split, count in expected.items())


@pytest.mark.parametrize("task", TASKS)
def test_shipped_recipes_name_columns_and_splits_that_are_there(task: str):
    section, found = recipe(task).examples, rows(task)
    columns = {*section.inputs, *section.labels, *section.metadata, section.split_column}
    assert columns == set(found[0])
    assert {section.train, section.dev} | ({section.test} if section.test else set()) == {row["split"] for row in found}


def test_demonstrations_stand_in_no_split_and_cover_every_intent_once():
    args = recipe("banking77_8").program.args
    texts = {normalise(row["text"]) for row in rows("banking77_8")}
    assert not texts & {normalise(demo["text"]) for demo in args["demos"]}
    assert [demo["intent"] for demo in args["demos"]] == args["intents"]
    assert tuple(args["intents"]) == prepare_banking77.EIGHT_INTENTS
    assert {row["intent"] for row in rows("banking77_8")} == set(args["intents"])


def test_no_pupa_conversation_stands_on_both_sides():
    sides = [{row["conversation"] for row in rows("pupa") if row["split"] == split} for split in ("train", "dev")]
    assert not sides[0] & sides[1]


def test_the_tiny_examples_are_what_the_rule_makes(tmp_path: Path):
    prepare_tiny.write(tmp_path)
    assert pq.read_table(tmp_path / "examples.parquet").equals(pq.read_table(DATA / "tiny" / "examples.parquet"))


@pytest.fixture
def banking(tmp_path: Path) -> Path:
    """A source of Banking77's form: per intent 80 train and 30 test rows, with repeats within and across the files."""
    names = ["text", "category"]
    train = [[f"{intent} train {n}", intent] for n in range(80) for intent in prepare_banking77.EIGHT_INTENTS]
    test = [[f"{intent} test {n}", intent] for n in range(30) for intent in prepare_banking77.EIGHT_INTENTS]
    train += [["  AGE_LIMIT train\n 0!", "age_limit"], ["age_limit test 0", "age_limit"]]
    (tmp_path / "train.csv").write_text(csv_text(names, [*train, ["weather?", "other"]]))
    (tmp_path / "test.csv").write_text(csv_text(names, test))
    return tmp_path


def test_a_fake_banking77_is_drawn_without_overlap_and_accounted_for(banking: Path):
    counts = prepare_banking77.write_eight(banking, banking / "out")
    made = pq.read_table(banking / "out" / "examples.parquet").to_pylist()
    texts = [row["text"] for row in made] + [demo["text"] for demo in prepare_banking77.demos(banking)]
    assert len(texts) == len({normalise(text) for text in texts}) == 400 + 100 + 200 + 8
    assert {row["split"] for row in made if " test " in row["text"]} == {"test"}
    assert counts == {
        "rows in train file": 643,
        "repeats in train file": 1,
        "train rows also in test file": 1,
        "rows in test file": 240,
        "repeats in test file": 0,
        "qualifying in train file": 632,
        "qualifying in test file": 240,
        "train": 400,
        "dev": 100,
        "test": 200,
    }


def test_a_draw_does_not_depend_on_the_order_of_the_source(banking: Path):
    prepare_banking77.write_eight(banking, banking / "a")
    head, *lines = (banking / "test.csv").read_text().splitlines()
    (banking / "test.csv").write_text("\n".join([head, *reversed(lines)]))
    prepare_banking77.write_eight(banking, banking / "b")
    assert (banking / "a" / "examples.parquet").read_bytes() == (banking / "b" / "examples.parquet").read_bytes()


def test_a_source_that_is_too_small_is_an_error(banking: Path):
    with pytest.raises(DataError, match="750 rows are wanted and the source has 641"):
        prepare_banking77.write_paper(banking, banking / "out")


def pupa_source(folder: Path, tnb: list[list[str]], new: list[list[str]]) -> None:
    names = list(prepare_pupa.FIELDS)
    (folder / "PUPA_TNB.csv").write_text(csv_text(names, tnb))
    (folder / "PUPA_New.csv.gz").write_bytes(gzip.compress(csv_text(names, new).encode()))


def test_a_fake_pupa_is_merged_filtered_and_accounted_for(tmp_path: Path):
    tnb = [
        ["c1", "x", "Q one", "r", "ann||bo"],
        ["c1", "y", "q  one!", "r", "bo||cy|| "],
        ["c2", "x", "Q two", "", "d"],
    ]
    new = [["c1", "x", "Q three", "r", "e"], ["c4", "x", "q one", "r", "f"], ["c5", "x", "Q five", "r", "g"]]
    pupa_source(tmp_path, tnb, new)
    counts = prepare_pupa.write(tmp_path, tmp_path / "out", train=1, dev=None)
    train, dev = pq.read_table(tmp_path / "out" / "examples.parquet").to_pylist()
    assert (train["split"], train["query"], train["pii_units"]) == ("train", "Q five", ["g"])
    assert (dev["split"], dev["query"], dev["pii_units"]) == ("dev", "Q one", ["ann", "bo", "cy"])
    assert counts == {
        "rows in TNB": 3,
        "TNB rows with an empty field": 1,
        "TNB rows that repeat a query": 1,
        "rows in New": 3,
        "New rows with an empty field": 0,
        "New rows that repeat a query": 0,
        "New queries that share text or conversation with TNB": 2,
        "train": 1,
        "dev": 1,
    }


def test_a_pupa_of_another_size_is_refused(tmp_path: Path):
    pupa_source(tmp_path, [["c", "x", "q", "r", "p"]], [])
    with pytest.raises(DataError, match="expected 221 distinct queries, got 1"):
        prepare_pupa.write(tmp_path, tmp_path / "out")


def test_a_missing_source_ends_with_exit_code_3_and_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path / "nowhere"), str(tmp_path / "data")])
    assert caught.value.code == 3
    assert "nowhere" in capsys.readouterr().err
