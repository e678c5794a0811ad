"""What is asked of commands that are given a run in which one file was spoilt: an answer, or a refusal."""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path
from random import Random

from pipeline.cli import main
from tests.fuzz.mutate import mutated, resealed
from tests.test_e2e.kit import own_recipe, run

COMMANDS = (
    ("status", "{run}"),
    ("verify", "{run}"),
    ("lineage", "{run}"),
    ("costs", "{run}"),
    ("report", "{run}"),
    ("export", "adapter", "{run}", "{out}/adapter", "--policy", "newest"),
    ("export", "groups", "{run}", "{out}/groups.parquet"),
    ("diff", "{run}", "{whole}"),
    ("plan", "{recipe}", "--run-dir", "{run}"),
)


def whole_run(cache: Path) -> Path:
    """A run of one iteration, made once."""
    folder = cache / "whole"
    if not folder.exists():
        assert run(own_recipe(cache / "own"), cache / "making", "--set", "run.iterations=1") == 0
        (cache / "making").rename(folder)
    return folder


def spoilt_run(cache: Path, work: Path, draw: Random) -> tuple[Path, str]:
    """A copy with one file spoilt, and its name."""
    whole = whole_run(cache)
    shutil.copytree(whole, work / "run")
    files = sorted(path for path in whole.rglob("*") if path.is_file() and path.suffix != ".html")
    file = draw.choice([path for path in files if path.suffix != ".parquet"] if draw.random() < 0.7 else files)
    data = mutated(file.read_bytes(), [other.read_bytes() for other in files if other.suffix == ".json"], draw)
    data = resealed(data, draw)
    (work / "run" / file.relative_to(whole)).write_bytes(data)
    return work / "run", file.relative_to(whole).as_posix()


def judge_commands(folder: Path, cache: Path, work: Path) -> list[int]:
    """Every command ends with an answer or a refusal, never with a traceback; gives their exit codes."""
    places = {"run": folder, "out": work / "out", "whole": whole_run(cache), "recipe": cache / "own" / "recipe.toml"}
    (work / "out").mkdir()
    codes = []
    for command in COMMANDS:
        told, failed = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(failed):
            code = main([part.format(**places) for part in command])
        assert code in {0, 2, 3, 4}, (command, code)
        assert "Traceback" not in failed.getvalue(), f"{' '.join(command)}\n{failed.getvalue()}"
        codes.append(code)
    return codes
