"""Writing a wide table piece by piece, for rows with long texts and lists of tokens, in the memory of one piece."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.parquet import as_arrow
from schemas.table import NAME_KEY, VERSION_KEY, TableSpec
from schemas.validate import check_columns, check_rows

ROW_GROUP = 8192


class PieceWriter:
    """Writes one Parquet file of one table. Equal pieces give equal bytes.

    Keys are compared within a piece only: whoever cuts the pieces keeps a key in one of them.
    """

    def __init__(self, path: Path, spec: TableSpec) -> None:
        metadata = {NAME_KEY: spec.name.encode(), VERSION_KEY: str(spec.version).encode()}
        self._spec, self._path = spec, path
        self._schema = spec.schema.with_metadata(metadata)
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd", compression_level=3)

    def write(self, rows: pa.Table | Sequence[dict[str, Any]]) -> None:
        """Add rows, as one piece.

        Raises:
            ContractError: with every broken rule, its count and three sample keys.
        """
        if not len(rows):
            return  # an empty row group is something that some readers stumble over
        where = str(self._path)
        table = check_columns(as_arrow(rows, self._spec, where), self._spec, where)
        check_rows(table, self._spec, where)
        self._writer.write_table(table.combine_chunks().cast(self._schema), row_group_size=ROW_GROUP)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
