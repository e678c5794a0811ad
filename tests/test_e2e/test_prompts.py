"""Prompts first, then weights: the prompts stage in whole runs on the tiny random model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.lineage import chain
from pipeline.store import Store
from schemas.groups import GROUPS
from schemas.parquet import read_frame, read_rows
from schemas.rollouts import INVOCATIONS
from stages.contract import Artifact
from stages.prompting.memory import Answer, Memory
from tests.test_e2e.kit import ROOT, artifact, mmgrpo, run, state
from tests.test_e2e.prompts_own import BOOTSTRAP, PROGRAM, RECIPE, prompts_recipe

QUIET = ("--exec", "progress=off")


def prompts_of(folder: Path) -> Artifact:
    """The prompts artifact of the run's set-up."""
    return Store(folder / "artifacts").open("prompts", state(folder).setup["prompts"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe with bootstrapped demonstrations, and the folder of its run."""
    folder = tmp_path_factory.mktemp("prompts")
    recipe = prompts_recipe(folder / "own", RECIPE.replace('"mipro"', '"bootstrap"'))
    assert run(recipe, folder / "run") == 0
    return recipe, folder / "run"


def test_demonstrations_are_in_the_trained_prompt_token_for_token(finished: tuple[Path, Path]) -> None:
    import dspy

    from stages.engines.models import load_tokenizer, resolve_base
    from stages.programs.plain_adapter import PlainAdapter

    _, folder = finished
    frozen = json.loads(prompts_of(folder).file("state.json").read_bytes())
    assert all(frozen[module]["demos"] for module in ("think", "say"))
    tokenizer = load_tokenizer(resolve_base("tiny-random", folder))
    calls = read_frame(artifact(folder, "rollout").file("invocations.parquet"), INVOCATIONS)
    members = read_frame(artifact(folder, "group").file("groups.parquet"), GROUPS)
    trained = members.join(calls, on=["rollout_id", "call_index"], suffix="_call")
    assert set(trained["module"]) == {"think", "say"}
    signatures = {"think": "word -> thought", "say": "word, thought -> answer"}
    for row in trained.iter_rows(named=True):
        demos = [dspy.Example(**demo) for demo in frozen[row["module"]]["demos"]]
        signature = dspy.Signature(signatures[row["module"]], frozen[row["module"]]["signature"]["instructions"])
        messages = PlainAdapter().format(signature, demos, json.loads(row["inputs"]))
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert row["prompt_ids"] == tokenizer(text, add_special_tokens=False)["input_ids"]
        assert len(messages) >= 4, "a system turn, a demonstration, and the question"


def test_the_base_is_evaluated_with_the_frozen_prompts(finished: tuple[Path, Path]) -> None:
    _, folder = finished
    for key in state(folder).evaluations["dev"].values():
        inputs = Store(folder / "artifacts").open("evaluate", key).manifest.payload["inputs"]
        assert inputs["prompts"] == prompts_of(folder).digest


def test_plan_verify_lineage_and_report_know_the_prompts(
    finished: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, folder = finished
    assert mmgrpo("verify", folder) == 0
    assert [row["prompts"] for row in chain(folder)] == [prompts_of(folder).digest]
    capsys.readouterr()
    assert mmgrpo("plan", recipe, "--run-dir", folder) == 0
    assert "jobs are up to date" in capsys.readouterr().out
    assert mmgrpo("plan", recipe, "--run-dir", folder, "--set", "prompts.labeled_demos=1") == 0
    told = capsys.readouterr().out
    assert "prompts.labeled_demos 2 -> 1" in told
    assert "needs prompts, not made yet" in told
    page = (folder / "report.html").read_text()
    assert "Prompt optimization" in page
    file = prompts_of(folder).file("state.json")
    kept = file.read_bytes()
    file.write_bytes(kept.replace(b"demos", b"demoz"))
    try:
        assert mmgrpo("verify", folder) == 3
        assert "state.json" in capsys.readouterr().err
    finally:
        file.write_bytes(kept)


def test_instructions_are_escaped_in_the_report(tmp_path: Path) -> None:
    program = PROGRAM.replace(
        'dspy.Predict("word -> thought")',
        'dspy.Predict(dspy.Signature("word -> thought", "<script>alert(1)</script>"))',
    )
    recipe = prompts_recipe(tmp_path / "own", program=program)
    assert run(recipe, tmp_path / "run", "--iterations", "0", *BOOTSTRAP) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert(1)" not in page


def test_new_prompts_are_made_every_k_iterations_with_the_adapter_of_then(tmp_path: Path) -> None:
    recipe = prompts_recipe(tmp_path / "own")
    folder, store = tmp_path / "run", Store(tmp_path / "run" / "artifacts")
    assert run(recipe, folder, "--iterations", "3", "--set", "prompts.every=2", *BOOTSTRAP) == 0
    made = state(folder)
    assert ["prompts" in stages for stages in made.iterations] == [False, False, True]
    first, second = prompts_of(folder), artifact(folder, "prompts", 2)
    assert second.manifest.payload["params"] == {"iteration": 2, "policy": made.policies[2]}
    assert second.manifest.payload["inputs"]["adapter"] == made.policies[2]
    assert second.manifest.payload["inputs"]["prompts"] == first.digest
    used = [artifact(folder, "rollout", index).manifest.payload["inputs"]["prompts"] for index in range(3)]
    assert used == [first.digest, first.digest, second.digest]
    scored = [store.open("evaluate", key).manifest.payload["inputs"]["prompts"] for key in scores(folder)]
    assert scored == [first.digest, first.digest, first.digest, second.digest]
    assert [row["prompts"] for row in chain(folder)] == used
    assert mmgrpo("verify", folder) == 0
    assert run(recipe, folder, "--iterations", "3", *BOOTSTRAP) == 0
    assert not any("prompts" in stages for stages in state(folder).iterations)
    assert mmgrpo("verify", folder) == 0


def scores(folder: Path) -> list[str]:
    """Keys of the dev evaluations, by policy in the order of the run."""
    made = state(folder)
    return [made.evaluations["dev"][policy] for policy in dict.fromkeys(made.policies)]


def test_without_the_optimizer_the_run_has_no_prompts_left(finished: tuple[Path, Path], tmp_path: Path) -> None:
    recipe, folder = finished
    other = tmp_path / "run"
    shutil.copytree(folder, other)
    assert run(recipe, other, "--iterations", "0", "--set", "prompts.optimizer=none") == 0
    made = state(other)
    assert "prompts" not in made.setup
    assert made.iterations == ()
    assert len(made.evaluations["dev"]) == 1
    inputs = Store(other / "artifacts").open("evaluate", *made.evaluations["dev"].values()).manifest.payload["inputs"]
    assert "prompts" not in inputs
    assert run(recipe, other) == 0
    assert state(other).setup["prompts"] == state(folder).setup["prompts"]
    assert state(other).policies == state(folder).policies


def test_the_stage_runs_alone_and_nothing_runs_before_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, folder = prompts_recipe(tmp_path / "own"), tmp_path / "run"
    options = ("--run-dir", folder, *QUIET, *BOOTSTRAP)
    assert mmgrpo("stage", "rollout", recipe, *options) == 3
    assert "mmgrpo stage prompts RECIPE --iteration 0" in capsys.readouterr().err
    assert mmgrpo("stage", "prompts", recipe, *options) == 0
    assert "prompts" in state(folder).setup
    assert mmgrpo("stage", "rollout", recipe, *options) == 0
    assert mmgrpo("stage", "prompts", recipe, *options, "--iteration", "1") == 3
    assert "makes no prompts before iteration 1" in capsys.readouterr().err


def test_a_plain_callable_is_refused_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.test_e2e.kit import PROGRAM as PLAIN

    recipe = prompts_recipe(tmp_path / "own", program=PLAIN)
    assert run(recipe, tmp_path / "run") == 2
    assert "makes a plain callable" in capsys.readouterr().err
    assert not (tmp_path / "run" / "artifacts").exists()


KILLED = """
import os, signal, sys
from stages.prompting.memory import Memory
add, limit, log = Memory.add, int(sys.argv[1]), open(sys.argv[2], "a")
made = 0
def counted(self, key, answer):
    global made
    if made == limit:
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, key, answer)
    made += 1
    log.write(key + chr(10))
    log.flush()
Memory.add = counted
from pipeline.cli import main
sys.exit(main(sys.argv[3:]))
"""


def paid(folder: Path, recipe: Path, limit: int) -> tuple[int, list[str]]:
    """Run the prompts stage in a process that SIGKILLs itself at an answer; its exit code, and keys of new answers."""
    log = folder.with_suffix(f".{limit}")
    command = [sys.executable, "-c", KILLED, str(limit), str(log), "stage", "prompts", str(recipe)]
    environment = {**os.environ, "PYTHONHASHSEED": str(limit % 1000), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--run-dir", str(folder), *QUIET], capture_output=True, text=True, check=False, cwd=ROOT,
        env=environment, timeout=300,
    )  # fmt: skip
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-2000:]
    return done.returncode, log.read_text().split()


def test_mipro_killed_and_resumed_ends_with_the_same_bytes_and_pays_for_no_call_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, whole = prompts_recipe(tmp_path / "own"), []
    add = Memory.add

    def noted(self: Memory, key: str, answer: Answer) -> None:
        whole.append(key)
        add(self, key, answer)

    monkeypatch.setattr(Memory, "add", noted)
    assert mmgrpo("stage", "prompts", recipe, "--run-dir", tmp_path / "quiet", *QUIET) == 0
    code, before = paid(tmp_path / "killed", recipe, len(whole) // 2)
    assert code == -signal.SIGKILL
    assert len(before) == len(whole) // 2
    code, after = paid(tmp_path / "killed", recipe, 10**9 + 1)
    assert code == 0
    answers = before + after
    assert len(answers) == len(set(answers)) == len(whole)
    assert set(answers) == set(whole)
    quiet, killed = prompts_of(tmp_path / "quiet"), prompts_of(tmp_path / "killed")
    assert killed.digest == quiet.digest
    for name in ("state.json", "trials.parquet"):
        assert killed.file(name).read_bytes() == quiet.file(name).read_bytes()
    assert killed.manifest.metrics == quiet.manifest.metrics
    assert not list((tmp_path / "killed").rglob("answers.jsonl"))


def test_answers_after_a_torn_line_are_asked_again(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    memory = Memory(file)
    for index in range(3):
        memory.add(f"k{index}", Answer(f"text {index}\n", "stop", 3, None))
    memory.close()
    file.write_bytes(file.read_bytes()[:-7])
    again = Memory(file)
    assert [again.get(f"k{index}") is not None for index in range(3)] == [True, True, False]
    again.add("k2", Answer("other", "stop", None, None))
    again.close()
    assert Memory(file).get("k2") == Answer("other", "stop", None, None)


def test_a_teacher_shows_the_students_frozen_demonstrations(tmp_path: Path) -> None:
    lms = '[lms.base]\nkind = "base"\nmax_new_tokens = 8\ntemperature = 1.0\n'
    own = RECIPE.replace('"mipro"', '"bootstrap"').replace(
        "[rollout]", f'{lms}[teachers.other]\nlm = "base"\nrollouts = 1\n[rollout]'
    )
    assert run(prompts_recipe(tmp_path / "own", own), tmp_path / "run") == 0
    frozen = json.loads(prompts_of(tmp_path / "run").file("state.json").read_bytes())
    key = state(tmp_path / "run").iterations[0]["teacher.other"]
    file = Store(tmp_path / "run" / "artifacts").open("teacher", key).file("invocations.parquet")
    rows = [row for row in read_rows(file, INVOCATIONS) if row["module"] == "think"]
    assert rows
    for row in rows:
        assert frozen["think"]["demos"][0]["word"] in json.loads(row["messages"])[1]["content"]
