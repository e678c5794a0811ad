"""The tiny task's examples: words of three letters, made by rule."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa

from pipeline.tasks.draw import Row, shuffled, write_examples

SEED = 0
SPLITS = {"train": 16, "dev": 8, "test": 8}
SCHEMA = pa.schema([pa.field("split", pa.string(), nullable=False), pa.field("word", pa.string(), nullable=False)])


def rows() -> list[Row]:
    """Seeded draw from all words of the form consonant, vowel, consonant."""
    words = ["".join(word) for word in itertools.product("bdfgklmnprst", "aeiou", "bdgklmnprt")]
    drawn = iter(shuffled(words, SEED, str))
    return [{"split": split, "word": next(drawn)} for split, count in SPLITS.items() for _ in range(count)]


def write(folder: Path) -> dict[str, int]:
    """Write the examples; returns rows by split."""
    write_examples(folder / "examples.parquet", rows(), SCHEMA)
    return dict(SPLITS)
