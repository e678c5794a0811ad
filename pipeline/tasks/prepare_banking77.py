"""Banking77's example files: the paper's 250/500 over 77 intents, and a small task of 8 intents for CPUs.

Training and dev examples, and demonstrations, come from the source's train file; the small task's test examples come
from the source's own test file, which nothing else touches. A message that occurs twice (as normalised text) counts
once, and one that occurs in both files is left to the test file.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa

from pipeline.tasks.draw import Row, distinct, draw, write_examples
from pipeline.tasks.text import normalise
from schemas.errors import DataError

SEED = 77
PAPER = {"train": 250, "dev": 500}
EIGHT = {"train": 400, "dev": 100, "test": 200}
EIGHT_INTENTS = (
    "card_arrival",
    "country_support",
    "age_limit",
    "exchange_rate",
    "change_pin",
    "lost_or_stolen_phone",
    "request_refund",
    "apple_pay_or_google_pay",
)
SCHEMA = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("split", "text", "intent")])


def write_paper(source: Path, folder: Path) -> dict[str, int]:
    """Write the 77-intent examples; returns counts of rows kept and dropped."""
    train, _, counts = _read(source)
    return counts | _write(folder, _splits(train, PAPER))


def write_eight(source: Path, folder: Path) -> dict[str, int]:
    """Write the 8-intent examples; returns counts of rows kept and dropped."""
    train, test, counts = _read(source)
    train, test = ([row for row in rows if row["intent"] in EIGHT_INTENTS] for rows in (train, test))
    shown = {demo["text"] for demo in demos(source)}
    pool = [row for row in train if row["text"] not in shown]
    rows = _splits(pool, {name: EIGHT[name] for name in ("train", "dev")}) + _splits(test, {"test": EIGHT["test"]})
    return counts | {"qualifying in train file": len(pool), "qualifying in test file": len(test)} | _write(folder, rows)


def demos(source: Path) -> list[Row]:
    """One demonstration per intent of the small task: the row of the train file that is drawn first."""
    train, _, _ = _read(source)
    return [
        draw([row for row in train if row["intent"] == intent], 1, seed=SEED + 1, by="text", what=intent)[0]
        for intent in EIGHT_INTENTS
    ]


def _splits(rows: list[Row], sizes: dict[str, int]) -> list[Row]:
    drawn = iter(draw(rows, sum(sizes.values()), seed=SEED, by="text", what=f"Banking77 {', '.join(sizes)}"))
    return [{"split": split, **next(drawn)} for split, count in sizes.items() for _ in range(count)]


def _write(folder: Path, rows: list[Row]) -> dict[str, int]:
    write_examples(folder / "examples.parquet", rows, SCHEMA)
    return {split: sum(row["split"] == split for row in rows) for split in dict.fromkeys(row["split"] for row in rows)}


def _read(source: Path) -> tuple[list[Row], list[Row], dict[str, int]]:
    """Distinct rows of the train file that are not in the test file, distinct rows of the test file, and counts."""
    raw_train, raw_test = _csv(source / "train.csv"), _csv(source / "test.csv")
    once, test = distinct(raw_train, "text"), distinct(raw_test, "text")
    tested = {normalise(row["text"]) for row in test}
    train = [row for row in once if normalise(row["text"]) not in tested]
    counts = {
        "rows in train file": len(raw_train),
        "repeats in train file": len(raw_train) - len(once),
        "train rows also in test file": len(once) - len(train),
        "rows in test file": len(raw_test),
        "repeats in test file": len(raw_test) - len(test),
    }
    return train, test, counts


def _csv(path: Path) -> list[Row]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [{"text": row["text"].strip(), "intent": row["category"]} for row in csv.DictReader(file)]
    except (OSError, KeyError) as error:
        raise DataError(f"{path}: expected Banking77's CSV with the columns text and category ({error!r})") from None
