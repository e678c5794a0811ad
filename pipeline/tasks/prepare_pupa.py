"""PUPA's example files: dev = the distinct queries of PUPA-TNB, train = 111 drawn from PUPA-New.

A query that occurs several times (once per category, as annotated) counts once: its first row, with the private units
of all its rows. Rows with an empty field are dropped. Training queries share neither text nor conversation with dev.
"""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import pyarrow as pa

from pipeline.tasks.draw import Row, draw, write_examples
from pipeline.tasks.text import normalise
from schemas.errors import DataError

SEED = 111
TRAIN = 111
DEV = 221
FIELDS = ("conversation_hash", "predicted_category", "user_query", "target_response", "pii_units")
SCHEMA = pa.schema(
    [pa.field(name, pa.string(), nullable=False) for name in ("split", "query", "response")]
    + [pa.field("pii_units", pa.list_(pa.field("item", pa.string(), nullable=False)), nullable=False)]
    + [pa.field(name, pa.string(), nullable=False) for name in ("category", "conversation")]
)


def write(source: Path, folder: Path, *, train: int = TRAIN, dev: int | None = DEV) -> dict[str, int]:
    """Write the examples; returns counts of rows kept and dropped.

    Raises:
        DataError: when a source file is missing, or has not the `dev` distinct queries that it should (None: any).
    """
    tnb, tnb_counts = _merged(_csv(source / "PUPA_TNB.csv"), "TNB")
    if dev is not None and len(tnb) != dev:
        raise DataError(f"{source / 'PUPA_TNB.csv'}: expected {dev} distinct queries, got {len(tnb)}")
    new, new_counts = _merged(_csv(source / "PUPA_New.csv.gz"), "New")
    texts, conversations = ({row[name] for row in tnb} for name in ("normalised", "conversation"))
    pool = [row for row in new if row["normalised"] not in texts and row["conversation"] not in conversations]
    drawn = draw(pool, train, seed=SEED, by="query", what="PUPA train")
    rows = [{"split": "train", **row} for row in drawn] + [{"split": "dev", **row} for row in tnb]
    write_examples(folder / "examples.parquet", [{name: row[name] for name in SCHEMA.names} for row in rows], SCHEMA)
    overlap = {"New queries that share text or conversation with TNB": len(new) - len(pool)}
    return tnb_counts | new_counts | overlap | {"train": len(drawn), "dev": len(tnb)}


def _merged(rows: list[Row], name: str) -> tuple[list[Row], dict[str, int]]:
    """One row per normalised query, in source order, and counts."""
    full = [row for row in rows if all(row[field].strip() for field in FIELDS)]
    merged: dict[str, Row] = {}
    for row in full:
        text = normalise(row["user_query"])
        kept = merged.setdefault(text, _row(row, text))
        units = [unit.strip() for unit in row["pii_units"].split("||")]
        kept["pii_units"] = list(dict.fromkeys([*kept["pii_units"], *filter(None, units)]))
    counts = {
        f"rows in {name}": len(rows),
        f"{name} rows with an empty field": len(rows) - len(full),
        f"{name} rows that repeat a query": len(full) - len(merged),
    }
    return list(merged.values()), counts


def _row(row: Row, text: str) -> Row:
    return {
        "normalised": text,
        "query": row["user_query"],
        "response": row["target_response"],
        "pii_units": [],
        "category": row["predicted_category"],
        "conversation": row["conversation_hash"],
    }


def _csv(path: Path) -> list[Row]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
        return [{name: row[name] for name in FIELDS} for row in csv.DictReader(io.StringIO(text, newline=""))]
    except (OSError, KeyError) as error:
        raise DataError(f"{path}: expected PUPA's CSV with the columns {', '.join(FIELDS)} ({error!r})") from None
