"""An ingest that was killed goes on where it was, and gives what one gives that was not."""

from __future__ import annotations

import errno
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

from pipeline.cli import main
from pipeline.store import Store
from schemas.pieces import PieceWriter
from tests.test_e2e.kit import PROGRAM, own_recipe
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
        said = {"role": "assistant", "content": str(2 * number)}
        chat = {"id": f"chat-{number}", "module": "a", "messages": [asked, said]}
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
    assert (broken["code"], went_on["code"]) == (KILLED, 0), went_on["told"]
    assert snapshot(killed) == snapshot(alone)
    assert "begun by this command before its files changed" in went_on["told"]
    assert not list(killed.glob("ingest/.*.partial"))
    assert set(at_once["read"]) > {"logged-0.jsonl", "logged-2.jsonl", "logged-3.jsonl"}
    if workers == 1:  # others' reading is not seen here
        assert set(went_on["read"]) == {"logged-0.jsonl", "logged-3.jsonl"}
        assert 0 < went_on["made"] < at_once["made"]  # of the parts that no changed file has a trace in


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


METRIC = """

def metric(example, output, calls):
    with open(os.environ["SCORED"], "a") as file:
        file.write(example.inputs["question"].split("?")[0] + "\\n")
    if example.inputs["question"].startswith(os.environ.get("FAILS", "nothing")):
        raise ValueError("no score for " + example.inputs["question"][:14])
    return float(len(calls[0]["completion"]) == 1)
"""
ASKED = ("--set", "ingest.inputs={question='messages.0.content'}")
SCORED = (*ASKED, "--set", "examples.path=none.csv", "--rescore", "--exec", "concurrency=1")


@pytest.fixture
def scoring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe whose metric writes a line into the file `scored` beside it whenever it is run."""
    program = "import os\n" + PROGRAM.replace("def metric", "def unused") + METRIC
    made = own_recipe(tmp_path / "scoring", program=program)
    made.write_text(made.read_text().replace('inputs = ["word"]', 'inputs = ["question"]'))
    monkeypatch.setenv("SCORED", str(made.with_name("scored")))
    made.with_name("scored").touch()
    return made


def taken(recipe: Path) -> Counter[str]:
    """What was scored since this was asked last."""
    found = Counter(recipe.with_name("scored").read_text().splitlines())
    recipe.with_name("scored").write_text("")
    return found


@pytest.mark.slow
def test_a_rescore_that_is_killed_scores_no_rollout_again_whatever_comes_to_it(
    scoring: Path, traces: Path, tmp_path: Path
) -> None:
    alone, killed, logs = tmp_path / "alone", tmp_path / "killed", traces / "logged-*"
    (whole,) = done([step(scoring, logs, alone, *SCORED)])
    once = taken(scoring)
    assert (whole["code"], once.total(), set(once.values())) == (0, 72, {2})  # one ingest comes before, for its imports
    kills = [step(scoring, logs, killed, *SCORED, kill=kill) for kill in (whole["events"] - 80, 50, 30)]
    added: Step = {"write": str(traces / "logged-3.jsonl"), "text": logged(200)}
    *broken, last = done([*kills, added, step(scoring, logs, killed, *SCORED)])
    again = taken(scoring)
    assert [found["code"] for found in broken].count(KILLED) > 1
    assert last["code"] == 0
    assert again.total() <= 36 + 36 + 12 + len(kills)  # the first, all, the new ones, and what each kill broke off
    shutil.rmtree(alone)
    done([step(scoring, logs, alone, *SCORED)])
    assert snapshot(killed) == snapshot(alone)


@pytest.mark.slow
def test_an_ingest_onto_a_snapshot_that_is_killed_goes_on_from_the_parts_that_it_had_made(
    recipe: Path, traces: Path, tmp_path: Path
) -> None:
    snapshots, first = tmp_path / "s", tmp_path / "first"
    shutil.copytree(traces, first)
    done([step(recipe, first, snapshots, *ASKED)])
    ((_, parent),) = Store(snapshots).all()
    before = parent.name
    (traces / "logged-0.jsonl").write_text(logged(0).replace("Think.", "Think again."))
    (traces / "logged-3.jsonl").write_text(logged(200))
    alone = tmp_path / "alone"
    shutil.copytree(snapshots, alone)
    onto = [*ASKED, "--onto"]
    (whole,) = done([step(recipe, traces, alone, *onto, str(alone / "ingest" / before))])
    kills = [step(recipe, traces, snapshots, *onto, str(parent), kill=k) for k in (whole["events"] - 400, 150, 100, 50)]
    found = done([*kills, step(recipe, traces, snapshots, *onto, str(parent))])
    assert [item["code"] for item in found].count(KILLED) > 2
    assert found[-1]["code"] == 0
    assert sum(item["made"] for item in found) <= whole["made"] + len(kills)

    def child(folder: Path) -> dict[str, Any]:
        ((_, path),) = [item for item in Store(folder).all() if item[1].name != before]
        held: dict[str, Any] = json.loads((path / "manifest.json").read_text())
        return {name: held[name] for name in ("key", "digest", "metrics", "excluded")}

    assert child(snapshots) == child(alone)
    assert child(alone)["metrics"]["onto"].keys() == {"added", "replaced", "same"}


def rescored(recipe: Path, traces: Path, snapshots: Path) -> int:
    where = ["--snapshots", str(snapshots), "--set", MODULES, "--exec", "progress=plain"]
    return main(["ingest", str(recipe), str(traces / "logged-0.jsonl"), *where, *SCORED])


def test_scores_outlive_an_ingest_that_ends_after_them_and_failures_are_tried_again(
    scoring: Path, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(writer: PieceWriter, rows: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setenv("FAILS", "What is 7")
    with monkeypatch.context() as patch:
        patch.setattr(PieceWriter, "write", full)
        assert rescored(scoring, traces, tmp_path / "s") != 0
    assert taken(scoring).total() == 12 + 1  # a metric that fails is tried again
    monkeypatch.setenv("FAILS", "nothing")
    assert rescored(scoring, traces, tmp_path / "s") == 0
    assert taken(scoring) == {"What is 7 and 7": 1}
    assert snapshot(tmp_path / "s")["metrics"]["no_reward"] == {}


def test_a_metric_that_fails_on_every_rollout_makes_no_snapshot_and_says_why(
    scoring: Path, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("FAILS", "What is")
    assert rescored(scoring, traces, tmp_path / "s") == 4
    said = capsys.readouterr().err
    assert "the metric failed in all 12 rollouts" in said
    assert "no score for What is" in said
    assert not Store(tmp_path / "s").all()
    monkeypatch.setenv("FAILS", "What is 7")
    assert rescored(scoring, traces, tmp_path / "s") == 0
    assert (
        "the metric failed on 1 rollouts; the first says: ValueError: no score for What is 7" in capsys.readouterr().err
    )
    assert taken(scoring).total() > 12


def test_other_labels_or_another_judge_make_another_snapshot(scoring: Path, traces: Path, tmp_path: Path) -> None:
    def key(labels: str, *more: str) -> str:
        (scoring.parent / "labelled.csv").write_text(f"question,split,answer\nq,train,{labels}\n")
        where = ["--snapshots", str(tmp_path / labels / str(len(more))), "--set", MODULES, *SCORED]
        data = ["--set", "examples.path=labelled.csv", "--set", "examples.labels=['answer']", *more]
        assert main(["ingest", str(scoring), str(traces / "logged-0.jsonl"), *where, *data]) == 0
        return str(snapshot(tmp_path / labels / str(len(more)))["key"])

    judge = ["--set", "metric.retries=0"]
    assert len({key("a"), key("b"), key("a", *judge)}) == 3
