"""What files the group stage reads as they are meant, and which it refuses by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.errors import DataError
from schemas.groups import GROUPS
from schemas.parquet import read_rows
from stages.grouping.files import TableFiles
from tests.test_stages.group_kit import (
    Row,
    artifact,
    call,
    policies_artifact,
    recipe,
    rollout,
    run_group,
    run_stage,
    write_inputs,
)

ROLLOUTS = [rollout(f"e{e}", i, float((i + e) % 3)) for e in range(3) for i in range(4)]
CALLS = [call(row["rollout_id"], p, "m", p) for row in ROLLOUTS for p in range(1 + row["rollout_index"] % 2)]


@pytest.fixture
def files(tmp_path: Path) -> TableFiles:
    return write_inputs(tmp_path / "in", ROLLOUTS, CALLS)


def groups(folder: Path, rollouts: list[Path], calls: list[Path], limit: int = 10**6) -> list[Row]:
    out, _ = run_group(folder, [TableFiles(tuple(rollouts), tuple(calls))], recipe(k=4), limit=limit)
    return read_rows(out.shards["groups.parquet"], GROUPS)


def split(path: Path, folder: Path, column: str) -> list[Path]:
    """One file per value of a column."""
    table, paths = pq.read_table(path), []
    folder.mkdir(parents=True)
    for value in sorted(set(table.column(column).to_pylist())):
        part = table.filter(pa.compute.equal(table.column(column), value))
        paths.append(folder / f"{value}.parquet")
        pq.write_table(part, paths[-1])
    return paths


def test_one_shard_a_rollout_is_the_same_table(files: TableFiles, tmp_path: Path) -> None:
    whole = groups(tmp_path, list(files.rollouts), list(files.calls))
    rollouts = split(files.rollouts[0], tmp_path / "r", "rollout_id")
    calls = split(files.calls[0], tmp_path / "c", "rollout_id")
    assert len(calls) == len(ROLLOUTS)
    assert groups(tmp_path, rollouts, calls) == whole
    assert groups(tmp_path, rollouts[::-1], calls[::-1], limit=4) == whole


def test_hive_folders_are_read_by_their_names(files: TableFiles, tmp_path: Path) -> None:
    paths = []
    for path in split(files.rollouts[0], tmp_path / "r", "example_id"):
        table = pq.read_table(path).drop_columns(["example_id"])
        paths.append(tmp_path / "hive" / f"example_id={path.stem}" / "part.parquet")
        paths[-1].parent.mkdir(parents=True)
        pq.write_table(table, paths[-1])
    whole = groups(tmp_path, list(files.rollouts), list(files.calls))
    assert groups(tmp_path, paths, list(files.calls)) == whole


def reorder(table: pa.Table) -> pa.Table:
    return table.select(table.schema.names[::-1])


def widen(table: pa.Table) -> pa.Table:
    kinds = {pa.int32(): pa.int64(), pa.string(): pa.large_string(), pa.list_(pa.int32()): pa.large_list(pa.int64())}
    return table.cast(pa.schema([pa.field(field.name, kinds.get(field.type, field.type)) for field in table.schema]))


def as_dictionary(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("module")
    return table.set_column(at, "module", table.column("module").dictionary_encode())


def with_extra(table: pa.Table) -> pa.Table:
    return table.append_column("note", pa.array(["x"] * len(table)))


def without_metadata(table: pa.Table) -> pa.Table:
    return table.replace_schema_metadata(None)


CHANGES = (reorder, widen, as_dictionary, with_extra, without_metadata)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("every", [True, False], ids=["every file", "one of two"])
def test_columns_are_taken_as_they_are_meant(
    files: TableFiles, tmp_path: Path, change: Callable[[pa.Table], pa.Table], every: bool
) -> None:
    whole = groups(tmp_path, list(files.rollouts), list(files.calls))
    table = pq.read_table(files.calls[0])
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(change(table.slice(0, 7)), first)
    pq.write_table(change(table.slice(7)) if every else table.slice(7), second)
    assert groups(tmp_path, list(files.rollouts), [first, second]) == whole
    assert groups(tmp_path, list(files.rollouts), [second, first], limit=4) == whole


def test_a_first_file_whose_list_column_is_all_null_has_no_completions(files: TableFiles, tmp_path: Path) -> None:
    table = pq.read_table(files.calls[0])
    empty = table.slice(0, 2)
    at = empty.schema.get_field_index("completion_ids")
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(empty.set_column(at, "completion_ids", pa.nulls(2)), first)
    pq.write_table(table.slice(2), second)
    out, totals = run_group(tmp_path, [TableFiles(files.rollouts, (first, second))], recipe(k=4))
    assert totals.reasons()["no_completion"] == 2
    assert len(read_rows(out.shards["groups.parquet"], GROUPS)) > 0


def refused(folder: Path, rollouts: Path, calls: Path) -> str:
    with pytest.raises(DataError) as caught:
        groups(folder, [rollouts], [calls])
    return str(caught.value)


@pytest.mark.parametrize("which", ["rollouts", "calls"])
def test_a_truncated_file_is_named(files: TableFiles, tmp_path: Path, which: str) -> None:
    paths = {"rollouts": files.rollouts[0], "calls": files.calls[0]}
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(paths[which].read_bytes()[:-20])
    paths[which] = cut
    assert f"{cut}" in refused(tmp_path, paths["rollouts"], paths["calls"])


def test_a_file_with_a_destroyed_page_is_named(files: TableFiles, tmp_path: Path) -> None:
    data = bytearray(files.calls[0].read_bytes())
    data[4:400] = bytes(396)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(data)
    assert f"{broken}" in refused(tmp_path, files.rollouts[0], broken)


@pytest.mark.parametrize("column", ["module", "attempt", "completion_ids"])
def test_a_missing_column_is_named_with_its_file(files: TableFiles, tmp_path: Path, column: str) -> None:
    path = tmp_path / "lacking.parquet"
    pq.write_table(pq.read_table(files.calls[0]).drop_columns([column]), path)
    said = refused(tmp_path, files.rollouts[0], path)
    assert f"{path}" in said
    assert f"column '{column}' is present" in said


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("parse_status", "maybe", "parse_status is one of"),
        ("finish_reason", "bored", "finish_reason is one of"),
        ("parsed_share", 1.5, "parsed_share is finite and within"),
        ("attempt", -1, "attempt is at least 0"),
        ("module", None, "module is not null"),
        ("invocation_index", 2**40, "column 'invocation_index' has type int32"),
    ],
)
def test_a_value_that_breaks_the_contract_is_named_with_its_file(
    files: TableFiles, tmp_path: Path, column: str, value: object, rule: str
) -> None:
    frame = pl.read_parquet(files.calls[0])
    kind = frame.schema[column] if value != 2**40 else pl.Int64
    values = [value, *frame.get_column(column).to_list()[1:]]
    path = tmp_path / "wrong.parquet"
    frame.with_columns(pl.Series(column, values, dtype=kind)).write_parquet(path)
    said = refused(tmp_path, files.rollouts[0], path)
    assert f"{path}" in said
    assert rule in said


def test_a_file_of_another_table_or_version_is_named(files: TableFiles, tmp_path: Path) -> None:
    assert "expected 'invocations'" in refused(tmp_path, files.rollouts[0], files.rollouts[0])
    path = tmp_path / "new.parquet"
    pq.write_table(pq.read_table(files.calls[0]).replace_schema_metadata({b"mmgrpo.version": b"99"}), path)
    assert "schema version 99" in refused(tmp_path, files.rollouts[0], path)


def test_folders_of_shards_stand_for_a_table(files: TableFiles, tmp_path: Path) -> None:
    folder = tmp_path / "artifact"
    folder.mkdir()
    for name, path in (("rollouts", files.rollouts[0]), ("invocations", files.calls[0])):
        split(path, folder / name, "rollout_id")
    artifacts = {"rollout": artifact(folder, "rollout"), "policies": policies_artifact(tmp_path / "p")}
    _, out = run_stage(tmp_path, artifacts, recipe(k=4))
    whole = groups(tmp_path, list(files.rollouts), list(files.calls))
    assert read_rows(out.shards["groups.parquet"], GROUPS) == whole


def test_calls_of_other_origin_that_pass_the_context_are_over_long(tmp_path: Path) -> None:
    rows = [rollout("e0", i, float(i)) for i in range(3)]
    calls = [call(row["rollout_id"], 0, prompt_ids=[1] * n) for row, n in zip(rows, (5, 8, 9), strict=True)]
    artifacts = {
        "rollout": artifact(_folder(tmp_path / "r", rows[:1], calls[:1]), "rollout"),
        "rollout.teacher": artifact(_folder(tmp_path / "t", rows[1:], calls[1:]), "rollout"),
        "policies": policies_artifact(tmp_path / "p"),
    }
    _, out = run_stage(tmp_path, artifacts, recipe(k=2, context=10))
    assert out.excluded == {"over_long": 1}


def _folder(folder: Path, rollouts: list[Row], calls: list[Row]) -> Path:
    files = write_inputs(folder, rollouts, calls)
    files.rollouts[0].rename(folder / "rollouts.parquet")
    files.calls[0].rename(folder / "invocations.parquet")
    return folder
