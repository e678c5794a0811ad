from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from schemas.errors import ContractError
from schemas.examples import EXAMPLES
from schemas.groups import EXCLUDED
from schemas.parquet import NAME_KEY, VERSION_KEY, preflight, read_rows
from schemas.stream import TableWriter

ROW = {"rollout_id": "r", "call_index": 0, "module": "m", "invocation_index": 0, "attempt": 0, "reason": "flat_group"}


def write(path: Path, pieces: list[list[dict[str, object]]]) -> Path:
    writer = TableWriter(path, EXCLUDED)
    for piece in pieces:
        writer.write(pa.Table.from_pylist(piece, schema=EXCLUDED.schema))
    writer.close()
    return path


def test_a_streamed_table_says_in_its_footer_which_table_and_version_it_is(tmp_path: Path) -> None:
    metadata = preflight(write(tmp_path / "t.parquet", [[ROW]]), EXCLUDED).metadata
    assert (metadata[NAME_KEY], metadata[VERSION_KEY]) == (b"excluded", b"1")
    with pytest.raises(ContractError, match="footer says table 'excluded'"):
        preflight(tmp_path / "t.parquet", EXAMPLES)


def test_the_bytes_do_not_depend_on_the_pieces(tmp_path: Path) -> None:
    rows = [ROW | {"call_index": index, "module": f"m{index % 7}"} for index in range(100)]
    whole = write(tmp_path / "a.parquet", [rows])
    parts = write(tmp_path / "b.parquet", [rows[:1], rows[1:40], rows[40:]])
    assert whole.read_bytes() == parts.read_bytes()
    assert read_rows(whole, EXCLUDED) == rows
