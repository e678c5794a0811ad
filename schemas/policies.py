"""Policies: the chain of models that sampled data, in the order that staleness is measured in."""

from __future__ import annotations

import pyarrow as pa

from schemas.canonical import digest
from schemas.table import TableSpec, column, not_negative

SHARED = "*"
"""The key of the adapter map that stands for every module."""

POLICIES = TableSpec(
    name="policies",
    version=1,
    schema=pa.schema(
        [
            column("policy", pa.string()),
            column("base", pa.string()),
            column("adapters", pa.string()),  # canonical JSON object: module (or "*") -> adapter digest
            column("parent", pa.string(), null=True),
            column("iteration", pa.int32()),  # the first iteration that samples from it; the base is 0
        ]
    ),
    key=("policy",),
    rules=(not_negative("iteration"),),
)


def policy_digest(base: str, adapters: dict[str, str]) -> str:
    """The identity of a policy: base digest and the digest of the adapter of each module."""
    return digest({"base": base, "adapters": adapters})
