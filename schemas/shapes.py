"""Shapes of records that others may have made: what somebody reads of them is named, with its kind, and nothing else.

Digests say that a record was not changed since it was sealed. Who seals it anew can put in what he likes, and a text in
the place of a number must be told by its name, not by whatever stumbles over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Count = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Number = Annotated[float, Field(strict=True, ge=-1e300, le=1e300)]
Counts = dict[str, Count]
Digest = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]
"""sha256, in hex. Where a record names an artifact by it, no path can stand in its place."""
SHOWN = 60
"""Most characters of a value that are told."""


class Shape(BaseModel):
    """Strict: a text is no number, and neither is a truth value. What is not named here may be anything."""

    model_config = ConfigDict(strict=True, extra="allow")


def first_problem(name: str, shape: type[Shape], found: Mapping[str, Any]) -> str | None:
    """The first part of a record that is of another kind than its shape says; None where all are.

    Args:
        name: what the record is called.
        shape: what it must be.
        found: what it is.
    """
    try:
        shape.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join([name, *(str(part)[:SHOWN] for part in first["loc"])])
        got = "" if first["type"] in ("missing", "value_error") else f" (got {str(first['input'])[:SHOWN]!r})"
        return f"{where}: {first['msg'].removeprefix('Value error, ')}{got}"
    return None
