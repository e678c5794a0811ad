"""What the machine does not allow a command is told, and is no defect."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pipeline import cli
from pipeline.commands import status


@pytest.mark.parametrize("number", cli.REFUSALS)
def test_a_file_that_may_not_be_written_is_named_without_a_traceback(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_options: object) -> int:
        raise OSError(number, os.strerror(number), "run/.lock")

    monkeypatch.setattr(status, "do", refused)  # root is refused little, and no disk is filled for a test
    assert cli.main(["status", "run"]) == 4
    told = capsys.readouterr().err
    assert told.startswith(f"mmgrpo: run/.lock: {os.strerror(number)}. ")
    assert "Traceback" not in told


def test_another_error_of_the_system_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def failed(_options: object) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(tmp_path))

    monkeypatch.setattr(status, "do", failed)
    assert cli.main(["status", "run"]) == 4
    assert "Traceback" in capsys.readouterr().err
