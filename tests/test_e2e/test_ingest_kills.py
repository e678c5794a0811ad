"""An ingest that was killed goes on where it was, and gives what one gives that was not."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.store import Store
from tests.test_e2e.kit import own_recipe
from tests.test_stages.ingest_kit import TRACES

ROOT = Path(__file__).resolve().parents[2]
KILLED = -signal.SIGKILL
MODULES = "ingest.modules=[{module='a',span='.*'}]"
Step = dict[str, Any]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = own_recipe(tmp_path_factory.mktemp("own") / "r")
    made.write_text(made.read_text().replace('inputs = ["word"]', 'inputs = ["question"]'))
    return made


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Files of lines, each of several pieces, and files that are read whole."""
    for name in ("otel_genai_flat", "dspy_history"):
        shutil.copytree(TRACES / name, tmp_path / "traces" / name)
    for number in range(3):
        (tmp_path / "traces" / f"logged-{number}.jsonl").write_text(logged(12 * number))
    return tmp_path / "traces"


def logged(first: int) -> str:
    """Twelve chats, a line each."""
    lines = []
    for number in range(first, first + 12):
        asked = {"role": "user", "content": f"What is {number} and {number}? " + "Think. " * 40}
        chat = {"id": f"chat-{number}", "messages": [asked, {"role": "assistant", "content": str(2 * number)}]}
        lines.append(json.dumps(chat) + "\n")
    return "".join(lines)


def step(recipe: Path, traces: Path, snapshots: Path, *more: str, kill: int | None = None) -> Step:
    arguments = [str(recipe), str(traces), "--snapshots", str(snapshots), "--set", MODULES, *more]
    return {"arguments": arguments, "kill": kill}


def done(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """What came of each ingest among the steps."""
    command = [sys.executable, "-m", "tests.test_e2e.ingest_faults", json.dumps(steps)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    return found


def snapshot(snapshots: Path) -> dict[str, Any]:
    ((_, path),) = Store(snapshots).all()
    found: dict[str, Any] = json.loads((path / "manifest.json").read_text())
    return {name: found[name] for name in ("key", "digest", "metrics", "excluded")}


def test_an_ingest_that_is_killed_again_and_again_reads_each_piece_once(
    recipe: Path, traces: Path, tmp_path: Path
) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    kills = [step(recipe, traces, killed, kill=at) for at in (1, 20, 45, 60, 90, 120, 150)]
    first, *others, last = done([step(recipe, traces, alone), *kills, step(recipe, traces, killed)])
    assert [found["code"] for found in (first, last)] == [0, 0]
    assert [found["code"] for found in others].count(KILLED) > 3
    assert snapshot(killed) == snapshot(alone)
    read = Counter(name for found in (*others, last) for name in found["read"])
    again = read - Counter(first["read"])
    assert again.total() <= len(others)  # none but the one that a kill broke off
    assert not list(killed.glob(".*spool*"))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_files_may_come_change_and_go_before_an_ingest_goes_on(
    recipe: Path, traces: Path, tmp_path: Path, workers: int
) -> None:
    alone, killed, trial = tmp_path / "alone", tmp_path / "killed", tmp_path / "trial"
    changes: list[Step] = [
        {"write": str(traces / "logged-0.jsonl"), "text": logged(100)},
        {"write": str(traces / "logged-1.jsonl"), "text": None},
        {"write": str(traces / "logged-3.jsonl"), "text": logged(200)},
    ]
    (whole,) = done([step(recipe, traces, trial)])
    shared = ["--exec", f"ingest_workers={workers}"]
    broken, went_on, at_once = done(
        [
            step(recipe, traces, killed, kill=whole["events"] - 20),  # all is read, and some of it made
            *changes,
            step(recipe, traces, killed, *shared),
            step(recipe, traces, alone),
        ]
    )
    assert broken["code"] == KILLED
    assert snapshot(killed) == snapshot(alone)
    assert set(at_once["read"]) > {"logged-0.jsonl", "logged-2.jsonl", "logged-3.jsonl"}
    if workers == 1:  # others' reading is not seen here
        assert set(went_on["read"]) == {"logged-0.jsonl", "logged-3.jsonl"}


def test_what_was_read_in_another_way_or_under_a_lost_key_is_cleared_away(
    recipe: Path, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_SECRET", "a secret of more than a few letters")
    redact, keyed = ("--set", "ingest.redact.kinds=all"), ("--set", "ingest.key_env=OUR_SECRET")
    ways: list[tuple[str, ...]] = [
        (),
        ("--exec", "unpacked_gib=1"),
        redact,
        redact,
        (*redact, *keyed),
        (*redact, *keyed),
    ]
    found = done([step(recipe, traces, tmp_path / "s", *way, kill=30) for way in ways])
    assert [item["code"] for item in found] == [KILLED] * len(ways)
    assert len({len(item["read"]) for item in found[:4]}) == 1  # nothing was taken up
    assert set(found[5]["read"]).isdisjoint(found[4]["read"][:-1]) or len(found[5]["read"]) != len(found[4]["read"])
    assert len(list((tmp_path / "s").glob(".spool-*"))) == 1
