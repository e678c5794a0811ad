"""What doctor makes, and what it only looks at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_e2e.kit import mmgrpo

pytestmark = pytest.mark.real_model


def test_doctor_converts_nothing_without_being_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mmgrpo("doctor", "--cache", tmp_path)
    told = capsys.readouterr().out
    assert "ok  small model" in told
    assert "`mmgrpo doctor --convert` does so now" in told
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.slow  # half a minute of CPU
def test_doctor_says_what_it_converts_and_how_long_that_takes_before_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mmgrpo("doctor", "--cache", tmp_path, "--convert")
    told = capsys.readouterr()
    (made,) = tmp_path.glob("smollm2-135m-instruct-*/model.safetensors")
    assert f"Converting smollm2-135m-instruct to {made.parent}, once (some 20 seconds" in told.err
    assert f"in {made.parent}" in told.out
    mmgrpo("doctor", "--cache", tmp_path, "--convert")
    assert "Converting" not in capsys.readouterr().err
