"""A stream of rows makes the file that its rows alone decide, and breaks no contract."""

from __future__ import annotations

import random
import tempfile
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import schemas.stream
from schemas.errors import ContractError
from schemas.parquet import preflight, read_rows
from schemas.stream import TableWriter
from schemas.table import TableSpec, bounded, column, one_of

SPEC = TableSpec(
    name="things",
    version=3,
    schema=pa.schema(
        [column("name", pa.string()), column("kind", pa.string(), null=True), column("value", pa.float64())]
    ),
    key=("name",),
    rules=(one_of("kind", ("a", "b")), bounded("value", 0.0, 10.0)),
)


def piece(names: list[int], dictionary: list[str]) -> pa.Table:
    """Rows named by number, through a dictionary in some order; every third has no kind."""
    places = {name: at for at, name in enumerate(dictionary)}
    codes = pa.array([places[f"n{number:03d}"] for number in names], pa.int32())
    kinds = [None if number % 3 == 2 else "ab"[number % 3] for number in names]
    return pa.table(
        {
            "name": pa.DictionaryArray.from_arrays(codes, pa.array(dictionary)),
            "kind": pa.array(kinds),
            "value": pa.array([number % 7 for number in names], pa.float64()),
        }
    )


@settings(max_examples=60, deadline=None, database=None)
@given(st.permutations(range(40)), st.lists(st.integers(0, 40), max_size=5), st.randoms(use_true_random=False))
def test_pieces_and_dictionaries_change_no_byte(order: list[int], cuts: list[int], rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(schemas.stream, "ROW_GROUP", 16)
        folder, words = Path(name), [f"n{number:03d}" for number in range(60)]
        edges = sorted({0, 40, *cuts})
        with TableWriter(folder / "a.parquet", SPEC) as writer:
            writer.write(piece(list(order), words))
        with TableWriter(folder / "b.parquet", SPEC) as writer:
            for first, last in pairwise(edges):
                rng.shuffle(words)
                writer.write(piece(list(order[first:last]), words))
        assert (folder / "a.parquet").read_bytes() == (folder / "b.parquet").read_bytes()
        assert [row["name"] for row in read_rows(folder / "b.parquet", SPEC)] == [f"n{number:03d}" for number in order]
        assert preflight(folder / "a.parquet", SPEC).num_row_groups == 3


def test_an_empty_stream_is_an_empty_table(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "a.parquet", SPEC) as writer:
        pass
    assert writer.rows == 0
    assert read_rows(tmp_path / "a.parquet", SPEC) == []


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ({"name": "n001", "kind": "a", "value": 1.0}, r"\(name\) is unique"),
        ({"name": "x", "kind": "z", "value": 1.0}, "kind is one of a, b"),
        ({"name": "x", "kind": "a", "value": float("nan")}, "value is finite"),
        ({"name": None, "kind": "a", "value": 1.0}, "name is not null"),
    ],
)
def test_a_row_that_breaks_the_contract_stops_the_stream(tmp_path: Path, row: dict[str, object], rule: str) -> None:
    good = piece([0, 1], ["n000", "n001"])
    schema = pa.schema([("name", pa.string()), ("kind", pa.string()), ("value", pa.float64())])
    writer = TableWriter(tmp_path / "a.parquet", SPEC)
    writer.write(good)
    writer.write(pa.Table.from_pylist([row], schema=schema))
    with pytest.raises(ContractError, match=rule):
        writer.close()
