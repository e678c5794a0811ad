"""What attempts take is kept, and the ledger adds it up without making anything up."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli import main
from pipeline.cost_forms import as_csv, as_json, as_text
from pipeline.costing import Spent, Tokens, price_of, spent_of, together
from pipeline.costs import Ledger, ledger
from pipeline.metering import Meter, core_seconds
from pipeline.outcome import cost_line
from pipeline.partial import PartialArtifact
from pipeline.progress import Reporter
from pipeline.recipes import recipe_from
from pipeline.store import Store
from schemas.canonical import digest
from schemas.errors import DataError, RecipeError
from schemas.recipe import Recipe
from schemas.telemetry import Attempt, read_attempts
from stages import evaluate, group, logprobs, prompts, rollout, teacher, train
from stages.programs.spending import Spending
from tests.test_pipeline.report_run import RunWriter

PAYLOAD = {"stage": "demo"}
KEY = digest(PAYLOAD)
H100 = "NVIDIA H100 80GB HBM3"
DOCUMENT: dict[str, Any] = {
    "name": "priced",
    "model": {"base": "tiny-random"},
    "program": {"factory": "a:b", "metric": "a:c"},
    "examples": {"path": "e.csv", "inputs": ["x"]},
    "lms": {
        "judge": {"kind": "openai", "url": "http://localhost/v1", "model": "m"},
        "base": {"kind": "base"},
    },
    "prices": {
        "core_hour": 0.36,
        "gpu_hour": {"H100": 3.6},
        "lms": {"judge": {"input": 1, "output": 2}, "student": {"input": 10, "output": 20}},
    },
}


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate(DOCUMENT | changes)


def attempt(seconds: float = 10.0, gpus: int | None = 0, device: str | None = None) -> Attempt:
    return Attempt(seconds=seconds, core_seconds=seconds, cores=2, gpus=gpus, device=device, finished=True)


def finish(out: PartialArtifact) -> None:
    out.finish(stage="demo", version=1, key=KEY, payload=PAYLOAD, metrics={}, provenance={})


def test_an_attempt_that_failed_is_added_to_the_one_that_finished(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def work() -> None:
        with store.begin("demo", KEY, Reporter("off"), Meter(lambda: 0)):
            burn(0.1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    with store.begin("demo", KEY, Reporter("off"), Meter(lambda: 0)) as out:
        finish(out)
    artifact = store.open("demo", KEY)
    first, second = read_attempts(artifact.path)
    assert (first.finished, second.finished) == (False, True)
    assert first.core_seconds is not None
    assert first.core_seconds >= 0.09
    told = json.loads(artifact.file("telemetry/telemetry.json").read_text())
    assert told["seconds"] == pytest.approx(first.seconds + second.seconds, abs=2e-3)
    assert told["core_seconds"] >= 0.09
    assert told["gpu_seconds"] == 0


KILLED = """
import os, signal, sys
from pathlib import Path
from pipeline import partial, store
from pipeline.metering import Meter
from pipeline.progress import Reporter
partial.BEAT_S = 0.0
with store.Store(Path(sys.argv[1])).begin("demo", sys.argv[2], Reporter("off"), Meter(lambda: 0)) as out:
    sum(range(5_000_000))
    out.progress(1, 2, "parts")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_what_it_had_noted(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path, KEY], check=False)
    assert done.returncode == -signal.SIGKILL
    store = Store(tmp_path)
    [left] = read_attempts(store.unfinished()[0])
    assert not left.finished
    assert left.seconds > 0.01
    with store.begin("demo", KEY, Reporter("off"), Meter(lambda: 0)) as out:
        finish(out)
    assert [attempt.finished for attempt in read_attempts(store.open("demo", KEY).path)] == [False, True]


def test_a_damaged_record_of_an_attempt_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.begin("demo", KEY, Reporter("off"), Meter(lambda: 0)) as out:
        finish(out)
    file = store.folder("demo", KEY) / "telemetry" / "attempts" / "0000.json"
    file.write_text('{"seconds": 1}')
    with pytest.raises(DataError, match=r"0000\.json: no record of an attempt"):
        read_attempts(file.parent.parent.parent)


def test_processor_time_is_that_of_children_too_running_or_ended() -> None:
    before = core_seconds()
    code = "import time\nwhile time.process_time() < 0.3: pass\n"
    subprocess.run([sys.executable, "-c", code], check=True)
    ended = core_seconds()
    assert ended - before >= 0.29
    running = subprocess.Popen(
        [sys.executable, "-c", f"{code}print(flush=True)\ninput()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert running.stdout is not None
    running.stdout.readline()
    try:
        assert core_seconds() - ended >= 0.29
    finally:
        running.communicate(b"\n")


def test_processes_that_share_a_stage_do_not_know_the_time_of_all() -> None:
    meter = Meter(lambda: 4, processes=4)
    found = meter.read()
    assert found.core_seconds is None
    assert found.gpu_seconds == found.seconds * 4


@pytest.mark.parametrize(
    ("device", "price"),
    [(H100, 3.0), ("NVIDIA A100-SXM4-80GB", 2.0), ("NVIDIA A10", 1.0), ("NVIDIA H1000", None), ("Tesla T4", None)],
)
def test_a_gpu_is_priced_by_whole_words_of_its_name(device: str, price: float | None) -> None:
    assert price_of(device, {"H100": 3.0, "a100": 2.0, "A10": 1.0}) == price


def test_of_prices_that_fit_the_one_of_the_most_words_counts() -> None:
    assert price_of(H100, {"H100": 3.0, "NVIDIA H100 80GB": 4.0, "": 9.0}) == 4.0
    assert price_of("NVIDIA A100", {"A10": 1.0, "H100": 2.0, "80GB": 3.0}) is None


def test_money_is_cores_gpus_and_tokens_of_others() -> None:
    figures = {
        "core_seconds": 3600.0,
        "lm.judge.calls": 2.0, "lm.judge.prompt_tokens": 1e6, "lm.judge.completion_tokens": 1e6,
        "lm.base.calls": 9.0, "lm.base.prompt_tokens": 1e6,
    }  # fmt: skip
    spent = spent_of(figures, [attempt(1800.0, 2, H100)], recipe())
    assert spent.money == pytest.approx(0.36 + 3.6 + 1 + 2)
    assert spent.unpriced == ()
    assert spent.lms["base"] == Tokens(9, 1_000_000)
    served = figures | {"server.calls": 1.0, "server.prompt_tokens": 1e5, "server.completion_tokens": 1e5}
    assert spent_of(served, [attempt()], recipe()).money == pytest.approx(0.36 + 1 + 2 + 1 + 2)


@pytest.mark.parametrize(
    ("figures", "attempts", "prices", "missing"),
    [
        ({"core_seconds": 1.0}, [attempt()], {}, "prices.core_hour: not given"),
        ({}, [attempt()], {"core_hour": 1}, "core-seconds: not recorded"),
        ({"core_seconds": 1.0}, [], {"core_hour": 1}, "GPU-seconds: not recorded"),
        ({"core_seconds": 1.0}, [attempt(1.0, None)], {"core_hour": 1}, "GPU-seconds: not recorded"),
        ({"core_seconds": 1.0}, [attempt(1.0, 1)], {"core_hour": 1}, "the name of the GPU: not known"),
        ({"core_seconds": 1.0}, [attempt(1.0, 1, H100)], {"core_hour": 1}, f"prices.gpu_hour: none for '{H100}'"),
        ({"core_seconds": 0.0, "lm.judge.calls": 1.0}, [attempt()], {}, "prices.lms.judge: not given"),
        ({"core_seconds": 0.0, "server.calls": 1.0}, [attempt()], {}, "prices.lms.student: not given"),
        (
            {"core_seconds": 0.0, "lm.judge.calls": 1.0, "lm.judge.untold_calls": 1.0},
            [attempt()],
            {"lms": {"judge": {"input": 1, "output": 1}}},
            "tokens of calls of 'judge': not told by who served them",
        ),
    ],
)
def test_money_is_unknown_and_not_0_where_something_is_missing(
    figures: dict[str, float], attempts: list[Attempt], prices: dict[str, Any], missing: str
) -> None:
    spent = spent_of(figures, attempts, recipe(prices=prices))
    assert (spent.money, spent.unpriced) == (None, (missing,))


def test_what_is_known_to_be_nothing_needs_no_price() -> None:
    assert spent_of({"core_seconds": 0.0}, [attempt()], recipe(prices={})).money == 0


@given(st.lists(st.one_of(st.none(), st.integers(0, 1000)), max_size=6))
def test_a_sum_is_known_exactly_where_every_part_is(values: list[int | None]) -> None:
    found = together(Spent(seconds=value, prompt_tokens=value) for value in values)
    wanted = None if None in values else sum(value for value in values if value is not None)
    assert (found.seconds, found.prompt_tokens) == (wanted, wanted)


def test_prices_are_part_of_no_key() -> None:
    with_, without = recipe(), recipe(prices={})
    for stage in (prompts, rollout, teacher, group, logprobs, train, evaluate):
        assert stage.recipe_slice(with_) == stage.recipe_slice(without)


def test_a_price_of_an_lm_that_is_not_there_is_refused() -> None:
    document = DOCUMENT | {"prices": {"lms": {"jugde": {"input": 1, "output": 1}}}}
    with pytest.raises(
        RecipeError, match=r"prices\.lms\.jugde: there is no LM 'jugde'; there are student, base, judge"
    ):
        recipe_from(document, "recipe.toml")
    with pytest.raises(RecipeError, match=r"prices\.core_hour"):
        recipe_from(DOCUMENT | {"prices": {"core_hour": -1}}, "recipe.toml")


def test_calls_are_counted_by_lm_and_those_of_unknown_size_apart() -> None:
    spending = Spending()
    spending.add("a.b", 10, 2)
    spending.add("a.b", 10, None)
    found = spent_of(spending.figures(), [attempt()], recipe())
    assert found.lms == {"a.b": Tokens(2, 10, 2, 1)}


def made_run(folder: Path) -> RunWriter:
    writer = RunWriter(folder, iterations=2)
    writer.add_setup()
    writer.add_scores(0, [0.0, 1.0])
    for position in (1, 2):
        writer.add_rollout()
        writer.add_group()
        writer.add_train()
        writer.add_scores(position, [1.0, 1.0])
    return writer


def test_rows_are_by_iteration_and_stage_and_add_up(tmp_path: Path) -> None:
    found = ledger(made_run(tmp_path).write())
    places = [(row.iteration, row.stage) for row in found.rows]
    assert places[:4] == [(None, "examples"), (None, "program"), (None, "base"), (None, "evaluate")]
    assert places[4:8] == [(0, "rollout"), (0, "group"), (0, "train"), (0, "evaluate")]
    assert [row.iteration for row in found.iterations] == [None, 0, 1]
    for rows in (found.rows, found.iterations, found.stages):
        assert sum(row.artifacts for row in rows) == found.total.artifacts == 12
        assert sum(row.spent.seconds or 0 for row in rows) == pytest.approx(found.total.spent.seconds)
    assert found.total.spent.completion_tokens == 1200 + 1201 + 3 * 400
    assert found.total.spent.money is None


def test_an_artifact_of_two_iterations_is_counted_once(tmp_path: Path) -> None:
    writer = made_run(tmp_path)
    writer.iterations[1]["group"] = writer.iterations[0]["group"]
    found = ledger(writer.write())
    assert found.total.artifacts == 11
    assert found.unused is not None
    assert found.unused.seconds == pytest.approx(0.4)  # the group that was made for it


def test_what_was_made_for_another_run_of_the_store_is_marked(tmp_path: Path) -> None:
    one, other = tmp_path / "runs" / "one", tmp_path / "runs" / "other"
    store = Store(tmp_path / "artifacts")
    store.root.mkdir()
    for folder in (one, other):
        folder.mkdir(parents=True)
        (folder / "artifacts").symlink_to(store.root)
    writer = RunWriter(other)
    writer.meter = Meter(lambda: 0)
    writer.setup["examples"] = writer.artifact("examples", "e", {}, made_for=store.place(one))
    policy = {"policy": writer.policies[0]}
    writer.setup["base"] = writer.artifact("base", "b", {}, metrics=policy, made_for=store.place(other))
    found = ledger(writer.write())
    assert [(row.stage, row.shared) for row in found.rows] == [("examples", 1), ("base", 0)]
    assert next(entry.made_for for entry in found.entries if entry.stage == "examples") == "runs/one"
    assert found.total.artifacts == 2
    assert (found.total.spent.attempts, found.own.attempts) == (2, 1)
    assert found.unused is None
    assert "1 artifact was made for another run" in as_text(found)


def test_the_forms_say_the_same_and_the_unknown_is_null_or_empty(tmp_path: Path) -> None:
    found = ledger(made_run(tmp_path).write())
    document = json.loads(as_json(found))
    rows = list(csv.DictReader(io.StringIO(as_csv(found))))
    assert len(rows) == len(document["rows"]) == len(found.rows)
    assert {row["money"] for row in rows} == {""}
    assert {row["money"] for row in document["rows"]} == {None}
    assert [row["seconds"] for row in rows] == [str(row["seconds"]) for row in document["rows"]]
    text = as_text(found)
    assert "money (USD)" in text
    assert "The money is not known, for want of: core-seconds: not recorded" in text
    assert "completion tokens" in cost_line(tmp_path)


def test_the_command_prints_one_form_and_refuses_what_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made_run(tmp_path / "run").write()
    for option, form in ((), as_text), (("--json",), as_json), (("--csv",), as_csv):
        assert main(["costs", str(folder), *option]) == 0
        assert capsys.readouterr().out.strip() == form(ledger(folder)).strip()
    file = folder / "run.json"
    assert main(["costs", str(file)]) == 3
    assert f"Is {file} a run folder?" in capsys.readouterr().err


@given(st.text(max_size=8))
def test_no_cell_of_the_csv_is_a_formula(name: str) -> None:
    spent = Spent(seconds=1.0, devices=(name,), lms={name: Tokens(1, 2, 3)}, unpriced=(name,))
    whole = csv_of(spent)
    rows = list(csv.reader(io.StringIO(whole, newline="")))
    cells = [cell for row in rows for cell in row]
    assert not any(cell.lstrip().startswith(("=", "+", "-", "@", "\t", "\r")) for cell in cells)
    assert len({len(row) for row in rows}) == 1


def csv_of(spent: Spent) -> str:
    from pipeline.costs import Row

    row = Row("rollout", 0, 1, 0, 0, spent)
    return as_csv(Ledger("n", "USD", (), (row,), (row,), (row,), row, spent, None))


def burn(seconds: float) -> None:
    import time

    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
