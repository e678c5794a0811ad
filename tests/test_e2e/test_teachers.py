"""Teachers end to end: other prompts, another adapter, an LM behind an endpoint; what the student is trained on."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from schemas.parquet import read_frame
from schemas.rollouts import INVOCATIONS
from stages.engines.models import load_tokenizer, resolve_base
from stages.training.members import load_members
from tests.test_e2e.kit import ROOT, TINY, artifact, mmgrpo, run, state
from tests.test_e2e.teachers_kit import artifact_of, made_adapter, student_recipe, table, write_state
from tests.test_stages.test_programs_endpoint import Server

TEACHERS = """
[lms.big]
kind = "openai"
url = "{url}"
model = "m"
temperature = 0.7
[teachers.prompts]
rollouts = 1
state = "better.json"
[teachers.tuned]
rollouts = 1
adapter = "adapter"
[teachers.big]
rollouts = 1
lm = "big"
state = "better.json"
"""
NAMES = ("big", "prompts", "tuned")


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A recipe's folder with a run of two iterations, three teachers in each."""
    root = tmp_path_factory.mktemp("taught")
    server = Server()
    recipe = student_recipe(root / "own", TEACHERS.format(url=server.url))
    made_adapter(root / "first", root / "own" / "adapter")
    assert run(recipe, root / "own" / "run", "--set", "run.iterations=2") == 0
    yield root / "own"
    server.http.shutdown()
    server.http.server_close()


def calls(taught: Path, name: str, iteration: int = 0) -> pl.DataFrame:
    return table(taught / "run", f"teacher.{name}", "invocations", iteration)


def text(messages: list[tuple[str, str]]) -> str:
    return json.dumps([{"content": content, "role": role} for role, content in messages], separators=(",", ":"))


def test_each_teacher_makes_its_part_of_g_under_its_own_prompt_adapter_or_lm(taught: Path) -> None:
    folder = taught / "run"
    rows = table(folder, "rollout", "rollouts")
    assert rows.group_by("example_id").len()["len"].to_list() == [3, 3, 3]
    assert rows["source"].unique().to_list() == ["student"]
    for name in NAMES:
        own = table(folder, f"teacher.{name}", "rollouts")
        assert own["source"].unique().to_list() == [f"teacher:{name}"]
        assert own["example_id"].to_list() == rows["example_id"].unique().sort().to_list()
    assert calls(taught, "tuned")["adapter"].null_count() == 0
    assert calls(taught, "prompts")["adapter"].null_count() == calls(taught, "prompts").height
    assert set(calls(taught, "big")["engine"]) == {"openai/m"}
    demos = calls(taught, "prompts").filter(module="draft")["messages"]
    assert all("a tall plant" in messages for messages in demos)
    policies = [table(folder, f"teacher.{name}", "rollouts", 1)["policy"][0] for name in NAMES]
    assert policies[0] is None
    assert policies[1] == state(folder).policies[1], "other prompts are sampled from the student's newest policy"
    assert policies[2] not in state(folder).policies


@pytest.mark.parametrize("name", NAMES)
def test_a_teachers_completion_is_trained_in_the_students_prompt_token_for_token(taught: Path, name: str) -> None:
    for row in calls(taught, name).iter_rows(named=True):
        word, note = (json.loads(row["inputs"]).get(field) for field in ("word", "note"))
        draft = [("system", "Write a note."), ("user", word)]
        polish = [("system", "Polish it."), ("user", f"Word: {word}\nNote: {note}")]
        assert row["student_messages"] == text(draft if row["module"] == "draft" else polish)
        assert row["transfer"] == "ok"
    rolled = artifact(taught / "run", "rollout").file("invocations.parquet")
    sent = read_frame(rolled, INVOCATIONS).filter(module="draft")
    prompts = dict(zip(sent["inputs"], sent["prompt_ids"].to_list(), strict=True))
    given = calls(taught, name).filter(module="draft")
    assert given["student_prompt_ids"].to_list() == [prompts[inputs] for inputs in given["inputs"]]
    files = [rolled, *(artifact_of(taught / "run", f"teacher.{each}").file("invocations.parquet") for each in NAMES)]
    members, _ = load_members(artifact(taught / "run", "group").file("groups.parquet"), files)
    trained = {(row.rollout_id, row.call_index): row for row in members.rows if row.source == f"teacher:{name}"}
    assert trained
    for call in calls(taught, name).iter_rows(named=True):
        if row := trained.get((call["rollout_id"], call["call_index"])):
            assert row.prompt.tolist() == call["student_prompt_ids"]
            assert row.completion.tolist() == call["completion_ids"]
            assert row.temperature == 1.0, "the student's, also where an endpoint samples at 0.7"
            assert (row.sampling is None) == (name != "tuned"), "what was logged under another prompt is no mu"


def test_an_endpoints_completion_is_retokenised_and_trained_as_likelihood(taught: Path) -> None:
    tokenizer = load_tokenizer(resolve_base("tiny-random", taught))
    rows = calls(taught, "big")
    assert rows["sampling_logprobs"].null_count() == rows.height
    assert set(rows["fidelity"]) == {"text"}
    for row in rows.iter_rows(named=True):
        assert row["completion_ids"][-1] == tokenizer.eos_token_id
        assert tokenizer.decode(row["completion_ids"], skip_special_tokens=True) == row["completion"]
    metrics = artifact(taught / "run", "train").manifest.metrics
    assert set(metrics["likelihood_sources"]) <= {"teacher:big", "teacher:prompts"}
    assert metrics["sources"].keys() >= {"student", "teacher:tuned"}
    groups = table(taught / "run", "group", "groups")
    negative = groups.filter(pl.col("source").is_in(["teacher:big", "teacher:prompts"]), pl.col("advantage") <= 0)
    assert artifact(taught / "run", "train").manifest.excluded["likelihood_not_positive"] == negative.height > 0


def test_mean_and_deviation_are_the_students_so_that_teachers_move_none_of_its_advantages(taught: Path) -> None:
    for _, group in table(taught / "run", "group", "groups").group_by("group_id"):
        own = group.filter(source="student")
        mean, std = own["reward"].mean(), own["reward"].std()
        assert own["advantage"].to_list() == pytest.approx([(r - mean) / (std + 1e-4) for r in own["reward"]], rel=1e-6)
        scale = max(std, group["reward"].std()) + 1e-4
        others = group.filter(pl.col("source") != "student")
        assert others["advantage"].to_list() == pytest.approx([(r - mean) / scale for r in others["reward"]], rel=1e-6)


def copied(taught: Path, folder: Path) -> Path:
    """The run, to change it."""
    shutil.copytree(taught / "run", folder / "run")
    return folder / "run"


def test_a_changed_teacher_leaves_the_rollouts_of_the_student_and_of_other_teachers(
    taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(taught, tmp_path)
    before = state(folder).iterations[0]
    write_state(taught / "other.json", [{"word": "sea", "note": "wide water"}])
    changed = ("--set", "teachers.prompts.state=other.json")
    assert mmgrpo("plan", taught / "recipe.toml", "--run-dir", folder, *changed) == 0
    planned = capsys.readouterr().out
    assert "up to date      iteration 0 · rollout" in planned
    _, _, why = planned.partition("will run        iteration 0 · teacher (prompts)\n")
    assert why.strip().startswith("teacher.program.state.draft.demos")
    assert run(taught / "recipe.toml", folder, *changed, "--set", "run.iterations=1") == 0
    after = state(folder).iterations[0]
    same = {name for name in after if after[name] == before.get(name)}
    assert same == {"rollout", "teacher.big", "teacher.tuned"}
    assert mmgrpo("verify", folder) == 0


def test_a_capped_teacher_supplies_its_share_at_most(taught: Path, tmp_path: Path) -> None:
    folder = copied(taught, tmp_path)
    capped = ("--set", "group.source_caps.teacher=0.26", "--set", "run.iterations=1")
    assert run(taught / "recipe.toml", folder, *capped) == 0
    assert artifact(folder, "group").manifest.excluded["source_cap"] > 0
    for _, group in table(folder, "group", "groups").group_by("group_id"):
        assert (group["source"] != "student").mean() <= 0.26


def test_verify_lineage_export_and_report_know_teachers(
    taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = taught / "run"
    assert mmgrpo("verify", folder) == 0
    capsys.readouterr()
    one = table(folder, "teacher.tuned", "rollouts")["rollout_id"][0]
    assert mmgrpo("lineage", folder, "--rollout", one, "--json") == 0
    fate = json.loads(capsys.readouterr().out)
    assert fate["rollout"]["source"] == "teacher:tuned"
    assert fate["members"]
    assert mmgrpo("lineage", folder, "--json") == 0
    chain = json.loads(capsys.readouterr().out)
    assert [len(row["teachers"]) for row in chain] == [3, 3]
    assert chain[0]["rollouts"] == 18
    assert mmgrpo("export", "groups", folder, tmp_path / "groups.parquet") == 0
    assert pl.read_parquet(tmp_path / "groups.parquet")["completion_ids"].null_count() == 0
    numbers = json.loads((folder / "report.json").read_text())
    rows = [row for row in numbers["sources"] if row["iteration"] == 0]
    assert [row["source"] for row in rows] == ["student", *(f"teacher:{name}" for name in NAMES)]
    assert [row["rollouts"] for row in rows] == [9, 3, 3, 3]
    assert sum(row["pull_share"] or 0 for row in rows) == pytest.approx(1.0)
    assert "Student and teachers" in (folder / "report.html").read_text()


def test_one_teacher_stage_runs_as_a_batch_job(taught: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mmgrpo("stage", "teacher", taught / "recipe.toml", "--run-dir", taught / "run", "--iteration", "1") == 0
    assert "teacher of iteration 1 is up to date" in capsys.readouterr().out


def refused(folder: Path, more: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a recipe with this teacher, before anything has run."""
    recipe = student_recipe(folder, more)
    write_state(folder / "short.json", [], names=("draft",))
    capsys.readouterr()
    assert run(recipe, folder / "run") in (2, 3)
    assert not (folder / "run" / "artifacts").exists() or not list((folder / "run" / "artifacts").rglob("*.parquet"))
    return capsys.readouterr().err


def test_a_teacher_with_a_missing_module_is_refused_with_the_difference_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(tmp_path / "a", '[teachers.t]\nrollouts = 2\nstate = "short.json"\n', capsys)
    assert "teachers.t: its program: program.state is the state of another program" in said
    assert "the state lacks polish" in said
    said = refused(tmp_path / "b", "[teachers.t]\nrollouts = 2\nargs = { modules = 1 }\n", capsys)
    assert "teachers.t has other modules than the student: the teacher lacks polish" in said


@pytest.mark.parametrize(
    ("teacher", "expected"),
    [
        ("rollouts = 2", "this teacher is the student itself"),
        ('rollouts = 5\nstate = "better.json"', "leaves the student 1, fewer than group.min_group (2)"),
        ('rollouts = 2\nlm = "huge"', "teachers.t.lm is 'huge', but [lms] has none"),
        ('rollouts = 2\nadapter = "."', "teachers.t.adapter: the adapter folder"),
        ('rollouts = 2\nfactory = "plain_b:program"', "the prompts of a plain function are made by its code"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], teacher: str, expected: str
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "plain_b.py").write_text("def program():\n    return lambda inputs, call: 1\n")
    assert expected in " ".join(refused(tmp_path / "x", f"[teachers.t]\n{teacher}\n", capsys).split())


def test_lineage_names_the_rollouts_that_were_trained_on_and_no_others(
    taught: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = taught / "run"
    metrics = artifact(folder, "train").manifest.metrics
    capsys.readouterr()
    assert mmgrpo("lineage", folder, "--policy", state(folder).policies[1], "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert sum(row["members"] for row in rows) == metrics["members"]
    sources = {row["rollout_id"]: row["source"] for row in table(folder, "group", "groups").iter_rows(named=True)}
    assert {sources[row["rollout_id"]] for row in rows} == metrics["sources"].keys()


def test_a_killed_teacher_stage_takes_up_its_runs_and_renders_them(taught: Path, tmp_path: Path) -> None:
    folder = copied(taught, tmp_path)
    whole = calls(taught, "prompts")
    shutil.rmtree(artifact_of(folder, "teacher.prompts").path)
    code = KILLER.format(arguments=["stage", "teacher", str(taught / "recipe.toml"), "--run-dir", str(folder)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert mmgrpo("stage", "teacher", taught / "recipe.toml", "--run-dir", folder) == 0
    again = table(folder, "teacher.prompts", "invocations")
    assert again.drop("sampling_logprobs").equals(whole.drop("sampling_logprobs"))


KILLER = """
import os, signal, sys
from stages import teacher
teacher._transferred = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from pipeline.cli import main
sys.exit(main({arguments}))
"""
"""The command line, in a process that is killed when a teacher's runs are made and not yet rendered."""


@pytest.mark.parametrize("unit", [pytest.param("invocation", marks=pytest.mark.slow), "trajectory"])
def test_a_plain_functions_teacher_is_an_adapter_or_an_lm_and_is_replayed_with_the_student(
    taught: Path, tmp_path: Path, unit: str
) -> None:
    options = {
        "teachers.tuned.rollouts": 2,
        "teachers.tuned.adapter": taught / "adapter",
        "teachers.base.rollouts": 1,
        "teachers.base.lm": "plain",
        "lms.plain.temperature": 1.0,
        "lms.plain.max_new_tokens": 12,
        "group.unit": unit,
        "run.replay": 1,
        "run.iterations": 2,
        "train.ess_floor": 0.0,
    }
    folder = tmp_path / "run"
    assert run(TINY, folder, *(part for name, value in options.items() for part in ("--set", f"{name}={value}"))) == 0
    rolled = table(folder, "teacher.tuned", "invocations")
    assert rolled["student_prompt_ids"].to_list() == rolled["prompt_ids"].to_list()
    assert set(rolled["transfer"]) == {"ok"}
    assert table(folder, "teacher.base", "rollouts")["policy"].unique().to_list() == [state(folder).policies[0]]
    groups, metrics = table(folder, "group", "groups", 1), artifact(folder, "train", 1).manifest.metrics
    assert metrics["sources"].keys() == {"student", "teacher:base", "teacher:tuned"}
    assert metrics["objective"] == "mmGRPO", "all of them have a mu"
    earlier = set(table(folder, "teacher.tuned", "rollouts")["rollout_id"])
    assert earlier & set(groups["rollout_id"]), "the teacher's rollouts of the iteration before"
    assert mmgrpo("verify", folder) == 0
