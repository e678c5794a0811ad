"""Examples: one row per dataset item."""

from __future__ import annotations

import pyarrow as pa

from schemas.canonical import canonical_json, digest
from schemas.table import TableSpec, column

EXAMPLES = TableSpec(
    name="examples",
    version=1,
    schema=pa.schema(
        [
            column("example_id", pa.string()),
            column("split", pa.string()),
            column("inputs", pa.string()),  # canonical JSON object
            column("labels", pa.string(), null=True),  # canonical JSON object, seen by the metric only
            column("metadata", pa.string(), null=True),  # canonical JSON object
        ]
    ),
    key=("example_id",),
)


def example_id(inputs: dict[str, object]) -> str:
    """The identity of an example: 16 hex digits of the digest of its canonical inputs."""
    return digest(inputs)[:16]


def example_row(
    split: str, inputs: dict[str, object], labels: dict[str, object] | None, metadata: dict[str, object] | None
) -> dict[str, object]:
    """One row of the examples table.

    Raises:
        TypeError: when a value has no canonical JSON form.
    """
    return {
        "example_id": example_id(inputs),
        "split": split,
        "inputs": canonical_json(inputs),
        "labels": None if labels is None else canonical_json(labels),
        "metadata": None if metadata is None else canonical_json(metadata),
    }
