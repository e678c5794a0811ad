"""JSON in cells is what its column says, or is refused by its place."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from schemas.cells import FIELDS, MESSAGES, NUMBERS, cell
from schemas.errors import DataError


def test_what_a_cell_must_hold_is_read() -> None:
    assert cell('{"right": 1, "steps": 0.5}', NUMBERS, "scores.parquet, parts") == {"right": 1, "steps": 0.5}
    assert cell(b'{"any": [null]}', FIELDS, "state.json") == {"any": [None]}
    assert cell('[{"role": "user"}]', MESSAGES, "x, messages") == [{"role": "user"}]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (NUMBERS, '{"right": "1"}'),
        (NUMBERS, '{"right": true}'),
        (NUMBERS, "[]"),
        (FIELDS, "null"),
        (FIELDS, "{"),
        (FIELDS, "[" * 99_999),
        (MESSAGES, "{}"),
        (MESSAGES, '["text"]'),
    ],
)
def test_anything_else_is_refused_by_its_place(kind: TypeAdapter[Any], text: str) -> None:
    with pytest.raises(DataError, match=r"scores\.parquet, parts: not the JSON .* Restore the file"):
        cell(text, kind, "scores.parquet, parts")
