"""The examples stage: what a data file says is what the table holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ContractError, RecipeError
from schemas.examples import EXAMPLES, example_id
from schemas.execution import Execution
from schemas.recipe import Recipe
from stages import examples
from stages.contract import Inputs
from tests.test_stages.programs_kit import FolderOut, rows_of

DEV = '{"x": "dev", "split": "dev"}'


def made(folder: Path, *lines: str | bytes, **section: Any) -> list[dict[str, Any]]:
    """The examples table made of the lines of a JSONL file."""
    data = b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
    (folder / "examples.jsonl").write_bytes(data)
    document = {
        "name": "test",
        "model": {"base": "tiny-random"},
        "program": {"factory": "p:p", "metric": "p:m"},
        "examples": {"path": "examples.jsonl", "inputs": ["x"], **section},
    }
    recipe = Recipe.model_validate(document)
    examples.run(Inputs({}, {}, folder), recipe, Execution(), FolderOut(folder / "out"))
    return rows_of(folder / "out", EXAMPLES)


@pytest.mark.parametrize(
    "value",
    [1, 1.5, True, "1", 10**30, {"a": 1}, {"b": [1, "x", None, 2.5]}, [], {}, "2026-01-01", "a\0b", "\U0001f600"],
)
def test_a_json_value_is_taken_as_it_stands_whatever_the_other_rows_hold(tmp_path: Path, value: Any) -> None:
    others = ['{"x": "text", "split": "train"}', '{"x": {"a": 0.5, "c": null}, "split": "train"}']
    rows = made(tmp_path, json.dumps({"x": value, "split": "train"}), *others, DEV)
    row = next(row for row in rows if row["example_id"] == example_id({"x": value}))
    assert json.loads(row["inputs"]) == {"x": value}
    assert type(json.loads(row["inputs"])["x"]) is type(value)


def test_a_label_that_a_row_lacks_is_null(tmp_path: Path) -> None:
    lines = ['{"x": "a", "split": "train", "y": {"deep": []}}', DEV]
    rows = made(tmp_path, *lines, labels=["y"])
    assert [row["labels"] for row in rows] == ['{"y":null}', '{"y":{"deep":[]}}']


def test_blank_lines_windows_line_ends_and_a_byte_order_mark_are_no_rows(tmp_path: Path) -> None:
    rows = made(tmp_path, b"\xef\xbb\xbf" + DEV.encode() + b"\r", "", '{"x": "a", "split": "train"}\r', "")
    assert [json.loads(row["inputs"])["x"] for row in rows] == ["dev", "a"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"x": ', "line 2 (Expecting value"),
        ("[1, 2]", "line 2 (a list)"),
        ('{"x": 1, "x": 2, "split": "train"}', "the key 'x' stands there twice"),
        (b'{"x": "\xff", "split": "train"}', "line 2 ('utf-8' codec"),
        ("[" * 100_000, "line 2 (maximum recursion"),
        ('{"x": NaN, "split": "train"}', "$.x: nan has no JSON form"),
        ('{"x": "\\ud800", "split": "train"}', "lone surrogate"),
        ('{"x": "a", "split": "\\ud800"}', "lone surrogate"),
        ('{"x": null, "split": "train"}', "x is not null: 1 row, for example row 1"),
        ('{"x": "a"}', "split is not null: 1 row, for example row 1"),
    ],
)
def test_a_line_that_cannot_be_taken_is_named(tmp_path: Path, line: str | bytes, said: str) -> None:
    with pytest.raises(ContractError) as caught:
        made(tmp_path, DEV, line, '{"x": "b", "split": "train"}')
    assert said in str(caught.value)


def test_every_broken_row_is_counted(tmp_path: Path) -> None:
    lines = ['{"x": null, "split": "train"}'] * 5 + ['{"x": NaN, "split": "train"}'] * 2
    with pytest.raises(ContractError) as caught:
        made(tmp_path, *lines, DEV)
    assert "x is not null: 5 rows, for example row 0, row 1, row 2" in str(caught.value)
    assert "nan has no JSON form): 2 rows" in str(caught.value)


def test_a_column_that_no_row_has_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no column z; it has x, split"):
        made(tmp_path, DEV, '{"x": "a", "split": "train"}', metadata=["z"])
