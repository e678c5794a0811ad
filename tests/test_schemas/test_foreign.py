"""JSON out of files that others made: what two readers could take differently is refused, and all of it is bounded."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.foreign import DEEPEST, lies_within, parse_json, read_bounded, read_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(JSON)
def test_json_is_read_as_it_was_written(value: object) -> None:
    assert parse_json(json.dumps(value).encode()) == value


HOSTILE = {
    "nan": b"[NaN]",
    "infinity": b"-Infinity",
    "a_number_too_large": b"[1e999]",
    "a_number_of_5000_digits": b"1" * 5000,
    "a_key_twice": b'{"a": 1, "a": 2}',
    "half_a_pair": b'["\\ud800"]',
    "half_a_pair_in_a_key": b'{"\\udc00": 1}',
    "no_utf8": b'"\xff"',
    "deeper_than_the_interpreter": b"[" * 100_000 + b"]" * 100_000,
    "deeper_than_it_may_be": b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1),
    "nothing": b"",
    "two_values": b"{} {}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_refused(name: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - every reader puts the file's name before it
        parse_json(HOSTILE[name])


def test_a_file_too_large_and_what_is_no_file_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b" " * 100)
    assert read_bounded(tmp_path / "large", 100) == b" " * 100
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="more than 99 bytes"):
        read_bounded(tmp_path / "large", 99)
    for name in ("pipe", "device", "."):
        with pytest.raises(ValueError, match="no plain file"):
            read_json(tmp_path / name)


@given(st.text(alphabet="./a\\\x00\x1b b"))
def test_a_name_that_lies_within_leads_nowhere_else(name: str) -> None:
    if lies_within(name):
        found = os.path.normpath(f"/folder/{name}")
        assert found.startswith("/folder/")
        assert found == f"/folder/{name}"
