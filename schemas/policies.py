"""Policies: the chain of models that sampled data, in the order that staleness is measured in."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pydantic import TypeAdapter

from schemas.canonical import digest
from schemas.errors import DataError
from schemas.foreign import parse_json
from schemas.parquet import read_rows
from schemas.shapes import Digest
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


def named_adapters(path: Path, policy: str) -> dict[str, str]:
    """Digests of a policy's adapters, by module or under "*".

    Args:
        path: of a table of policies.
        policy: its digest.

    Raises:
        DataError: naming the file, when it is damaged, lacks the policy, or has something else for its adapters.
    """
    found = {row["policy"]: row["adapters"] for row in read_rows(path, POLICIES)}
    if policy not in found:
        raise DataError(f"{path}: lacks the policy {policy[:12]}. Restore it, or delete its artifact and run again")
    try:
        return _ADAPTERS.validate_python(parse_json(found[policy]))
    except ValueError:
        raise DataError(
            f"{path}: adapters of the policy {policy[:12]}: expected a JSON object of digests (got "
            f"{found[policy][:60]!r}). Restore it, or delete its artifact and run again"
        ) from None


_ADAPTERS = TypeAdapter(dict[str, Digest])
