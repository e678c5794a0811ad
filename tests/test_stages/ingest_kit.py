"""What tests of ingest share: the sample files, what a file holds, and small values in forms that no sample has."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from stages.ingest.formats import Format, format_named, read_items, recognise
from stages.ingest.normal import Call, Item, Refused, Score, Span

TRACES = Path(__file__).parents[2] / "data" / "traces"


def sample_files() -> list[Path]:
    """Every file of traces in the repository."""
    return sorted(path for path in TRACES.glob("*/*") if path.name != "SOURCE.md")


@dataclass
class Held:
    """What was read of a file."""

    format: str | None = None
    spans: list[Span] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    @property
    def calls(self) -> list[Call]:
        return [span.call for span in self.spans if span.call is not None]

    @property
    def call(self) -> Call:
        """The only call."""
        (found,) = self.calls
        return found

    @property
    def root(self) -> Span:
        """The only span without a parent."""
        (found,) = [span for span in self.spans if span.parent is None]
        return found

    def score(self, name: str) -> Score:
        """The only score of a name."""
        (found,) = [score for score in self.scores if score.name == name]
        return found


def held(items: Iterator[Item], name: str | None = None) -> Held:
    found = Held(name)
    for item in items:
        if isinstance(item, Span):
            found.spans.append(item)
        elif isinstance(item, Score):
            found.scores.append(item)
        else:
            found.refused.append(item)
    return found


def read_file(path: Path | str, name: str | None = None) -> Held:
    """What a file holds, in a format of a name or in the one that it is recognised as."""
    known: Format | Refused = format_named(name) if name else recognise(str(path))
    if isinstance(known, Refused):
        return Held(None, refused=[known])
    return held(read_items(str(path), known), known.NAME)


def read_value(value: Any, tmp_path: Path, name: str | None = None) -> Held:
    """What a file of one JSON line holds."""
    path = tmp_path / "value"
    path.write_text(json.dumps(value) + "\n")
    return read_file(path, name)


def packed(path: Path, data: bytes, how: str) -> Path:
    """A file of bytes, as they are, or packed by gzip or zstd."""
    pack = {"plain": bytes, "gz": gzip.compress, "zst": zstandard.ZstdCompressor().compress}[how]
    path.write_bytes(pack(data))
    return path


def parquet(path: Path, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> Path:
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    return path


def counts(found: Held) -> dict[str, int]:
    """How much of what a file holds; what there is none of is left out."""
    calls = found.calls
    all_counts = {
        "traces": len({span.trace for span in found.spans}),
        "spans": len(found.spans),
        "calls": len(calls),
        "completions": sum(bool(call.completion) for call in calls),
        "tool_calls": sum(bool(call.tool_calls) for call in calls),
        "with_ids": sum(call.completion_ids is not None and call.prompt_ids is not None for call in calls),
        "errors": sum(span.error is not None for span in found.spans),
        "scores": len(found.scores),
        "refused": len(found.refused),
    }
    return {name: count for name, count in all_counts.items() if count}
