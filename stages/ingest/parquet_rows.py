"""Rows of any Parquet file, as JSON has them, in bounded memory."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import IO, Any

from stages.ingest.limits import limits
from stages.ingest.memory import allowance, at_most
from stages.ingest.normal import Refused
from stages.ingest.shape import Value


def parquet_rows(raw: IO[bytes], address: str) -> Iterator[Value | Refused]:
    """Each row as an object by its columns' names; what comes behind damage or a limit is refused.

    Args:
        raw: the file.
        address: of it, as messages show it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        number, total, size = 0, 0, raw.seek(0, io.SEEK_END)
        file, allowed = pq.ParquetFile(raw), limits().allowed(size)
        groups = range(file.metadata.num_row_groups)
        said = sum(file.metadata.row_group(place).total_byte_size for place in groups)
        for size_told, rows in _batches(file, size) if said <= allowed else ():
            total += size_told
            if total > max(allowed, limits().allowed(said)):
                break
            for row in rows:
                number += 1
                yield Value(_as_json(row), "rows", f"{address}, row {number}")
        if said > allowed or total > max(allowed, limits().allowed(said)):
            yield Refused("too_large", limits().refusal(allowed), address)
    except MemoryError:
        detail = f"256 of its rows, behind row {number}, take more than {allowance(size):,} bytes of memory"
        yield Refused("too_large", detail, address)
    except (pa.ArrowException, UnicodeDecodeError) as error:  # names of columns may be no text
        yield Refused("not_readable", str(error).splitlines()[0], address)


def _batches(file: Any, size: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The rows of a Parquet file, some at a time, and the bytes that those take as a table.

    Raises:
        MemoryError: where they take more than a file of this size may.
    """
    batches = file.iter_batches(batch_size=256, use_threads=False)
    while True:
        with at_most(allowance(size)):
            batch = next(batches, None)
            if batch is None:
                return
            found = batch.nbytes, batch.to_pylist()
        yield found


def _as_json(value: Any) -> Any:
    """A table's value as JSON has it: times in ISO-8601, bytes in hex, decimals as numbers."""
    if isinstance(value, dict):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return float(value) if isinstance(value, Decimal) else value
