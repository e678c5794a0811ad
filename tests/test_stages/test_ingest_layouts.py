"""One value of every format, in every way in which files lay values out: nothing is lost, nothing counted twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stages.ingest import json_values
from tests.test_stages.ingest_kit import Held, packed, read_file
from tests.test_stages.ingest_values import CHAT, SAID, VALUES


def compact(value: Any) -> bytes:
    return json.dumps(value).encode()


def pretty(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()


def windows(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


BOM = b"\xef\xbb\xbf"
ONCE: dict[str, Callable[[Any], bytes]] = {
    "pretty": pretty,
    "pretty, with Windows' ends of lines": lambda value: windows(pretty(value)),
    "pretty, behind a byte order mark": lambda value: BOM + pretty(value),
    "in an array": lambda value: compact([value]),
    "in a pretty array behind a byte order mark": lambda value: BOM + pretty([value]),
    "behind blank lines": lambda value: b"\n\n  " + compact(value) + b"\n",
    "UTF-16": lambda value: pretty(value).decode().encode("utf-16"),
    "UTF-16, big end first": lambda value: b"\xfe\xff" + compact(value).decode().encode("utf-16-be"),
    "UTF-32": lambda value: compact(value).decode().encode("utf-32"),
}
TWICE: dict[str, Callable[[Any], bytes]] = {
    "in an array": lambda value: compact([value, value]),
    "in an array of lines": lambda value: b"[\n" + compact(value) + b",\n" + compact(value) + b"\n]\n",
    "on lines between blank ones": lambda value: compact(value) + b"\n\n \n" + compact(value) + b"\n\n",
    "on lines, with Windows' ends": lambda value: (compact(value) + b"\r\n") * 2,
    "on lines behind a byte order mark": lambda value: BOM + compact(value) + b"\n" + compact(value),
    "one behind the other": lambda value: compact(value) * 2,
    "one behind the other, pretty": lambda value: (pretty(value) + b"\n") * 2,
    "one behind the other, pretty, with Windows' ends": lambda value: windows((pretty(value) + b"\n") * 2),
    "a sequence of JSON texts": lambda value: (b"\x1e" + compact(value) + b"\n") * 2,
    "in arrays on lines": lambda value: (compact([value]) + b"\n") * 2,
    "on lines in UTF-16": lambda value: ((compact(value) + b"\n") * 2).decode().encode("utf-16"),
}


def shown(found: Held) -> tuple[Any, ...]:
    """What was read, without the places where it stood."""
    spans = [(span.trace, span.span, span.call, span.inputs) for span in found.spans]
    return found.format, spans, [(score.name, score.value) for score in found.scores], len(found.refused)


@pytest.mark.parametrize("layout", sorted(ONCE))
def test_a_value_alone_is_read_however_it_is_laid_out(layout: str, tmp_path: Path) -> None:
    for name, (_, value) in VALUES.items():
        plain = read_file(packed(tmp_path / "plain", compact(value), "plain"))
        assert shown(read_file(packed(tmp_path / "other", ONCE[layout](value), "plain"))) == shown(plain), name


@pytest.mark.parametrize("how", ["plain", "gz", "zst"])
@pytest.mark.parametrize("layout", sorted(TWICE))
def test_values_that_follow_each_other_are_read_however_they_are_laid_out(
    layout: str, how: str, tmp_path: Path
) -> None:
    for name, (_, value) in VALUES.items():
        plain = read_file(packed(tmp_path / "plain", (compact(value) + b"\n") * 2, "plain"))
        assert shown(read_file(packed(tmp_path / "other", TWICE[layout](value), how))) == shown(plain), name


@pytest.mark.parametrize("size", [1 << 10, 64 << 20])
def test_documents_that_break_off_leave_those_before(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = [{"id": f"c{place}", "messages": [*CHAT, SAID]} for place in range(20)]
    data = b"\n".join(map(pretty, chats))
    monkeypatch.setattr(json_values, "WHOLE", size)
    whole = read_file(packed(tmp_path / "whole", data, "plain"))
    assert ([span.trace for span in whole.spans], whole.refused) == ([f"c{place}" for place in range(20)], [])
    cut = read_file(packed(tmp_path / "cut", data[: len(data) // 2], "plain"))
    assert len(cut.spans) in (9, 10)
    assert [item.reason for item in cut.refused] == ["not_json"]


def test_half_a_character_of_utf_16_takes_nothing_else_with_it(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"id": f"c{n}", "messages": [*CHAT, SAID]}) + "\n" for n in range(3))
    found = read_file(packed(tmp_path / "cut", lines.encode("utf-16")[:-1], "plain"))
    assert [span.trace for span in found.spans] == ["c0", "c1", "c2"]
