"""What the audit of dependencies says: never that all is well where nobody looked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import audit

PINS = Path("constraints.txt")
FINE = {"name": "a", "version": "1", "vulns": []}
WEAK = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("found", "code", "words"),
    [
        ([FINE, FINE], 0, "no known vulnerability in 2 packages"),
        ([FINE, UNKNOWN], 0, "1 could not be audited"),
        ([FINE, WEAK, UNKNOWN], 1, "b 2: PYSEC-1, mended in 3"),
        ([UNKNOWN, UNKNOWN], 0, "did not take place"),
        ([], 0, "did not take place"),
    ],
)
def test_a_verdict_is_of_what_was_asked(found: list[dict[str, object]], code: int, words: str) -> None:
    told = audit.verdict(found, PINS)
    assert (told[0], words in told[1]) == (code, True)


def test_an_audit_that_did_not_take_place_fails_where_it_is_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pins.txt").write_text("this is no requirement ===\n")
    for required, code in (("", 0), ("vllm,audit", 1)):
        monkeypatch.setenv("MMGRPO_TESTS_REQUIRE", required)
        assert audit.main(tmp_path / "pins.txt") == code
        assert "did not take place" in capsys.readouterr().out
    assert audit.verdict([UNKNOWN], PINS)[0] == 1
