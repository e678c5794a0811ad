"""What surrounds a run: a narrow locale, and a program that changes the working folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_e2e.kit import PROGRAM, ROOT, mmgrpo, own_recipe

NARROW = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "PYTHONPATH": str(ROOT)}


def test_a_locale_without_our_characters_stops_nothing(tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path / "a", examples="word,split\ngrün,train\n\U0001f600,train\nblau,dev\n")
    for command in (["run", "--iterations", "0", "--exec", "progress=plain"], ["plan"]):
        arguments = [
            command[0],
            str(recipe),
            "--run-dir",
            str(tmp_path / "run"),
            "--set",
            "rollout.examples=2",
            *command[1:],
        ]
        done = subprocess.run(
            [sys.executable, "-m", "pipeline.cli", *arguments],
            env=os.environ | NARROW,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
    assert b"evaluate dev" in done.stdout


def test_a_program_that_changes_the_working_folder_moves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    away = f"import os\n\ndef program():\n    os.chdir({str(tmp_path / 'elsewhere')!r})\n"
    recipe = own_recipe(tmp_path / "a", program=PROGRAM.replace("\ndef program():\n", away, 1))
    monkeypatch.chdir(tmp_path)
    assert mmgrpo("run", recipe, "--run-dir", "run", "--iterations", "0", "--exec", "progress=off") == 0
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert mmgrpo("verify", tmp_path / "run") == 0
