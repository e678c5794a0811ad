"""The tiny recipe through the command line: what a run leaves, what it skips, what goes stale, what verify sees."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from schemas.groups import EXCLUDED, GROUPS
from schemas.parquet import read_frame
from schemas.rollouts import INVOCATIONS
from tests.test_e2e.kit import TINY, artifact, keys, mmgrpo, run, state


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tiny run, made by the command that a user types. Tests copy it before they change anything."""
    folder = tmp_path_factory.mktemp("tiny") / "run"
    command = [sys.executable, "-m", "pipeline.cli", "run", str(TINY), "--run-dir", str(folder)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "dev score before training" in done.stderr
    assert "Report: " in done.stdout
    print(f"tiny run: {time.monotonic() - began:.1f} s")
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_leaves_two_iterations_a_changed_policy_each_and_a_report(finished: Path) -> None:
    run_file = state(finished)
    # The first iteration starts from the base, which is the reference too: one policy is scored, not two.
    first, second = ["group", "logprobs.old", "rollout", "train"], ["group", "logprobs.old", "logprobs.reference"]
    assert [sorted(stages) for stages in run_file.iterations] == [first, [*second, "rollout", "train"]]
    assert len(set(run_file.policies)) == 3
    assert set(run_file.evaluations["dev"]) == set(run_file.policies)
    assert (finished / "report.html").stat().st_size > 1000


def test_every_invocation_is_a_member_or_excluded_with_a_reason(finished: Path) -> None:
    for iteration in range(2):
        invocations = read_frame(artifact(finished, "rollout", iteration).file("invocations.parquet"), INVOCATIONS)
        group = artifact(finished, "group", iteration)
        key = ["rollout_id", "call_index"]
        members = read_frame(group.file("groups.parquet"), GROUPS).select(key).unique()
        excluded = read_frame(group.file("excluded.parquet"), EXCLUDED).drop_nulls("call_index").select(key)
        assert members.height + excluded.height == invocations.height
        assert pl.concat([members, excluded]).sort(key).equals(invocations.select(key).sort(key))
        assert sum(group.manifest.excluded.values()) == excluded.height


def test_the_second_iteration_samples_from_the_adapter_of_the_first(finished: Path) -> None:
    policies = state(finished).policies
    for iteration in range(2):
        path = artifact(finished, "rollout", iteration).file("invocations.parquet")
        adapters = set(read_frame(path, INVOCATIONS)["adapter"].to_list())
        assert (adapters == {None}) == (iteration == 0)
        assert artifact(finished, "rollout", iteration).manifest.payload["params"]["policy"] == policies[iteration]


def test_a_second_run_does_nothing_and_says_so(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in (copy / "artifacts").rglob("*")}
    assert run(TINY, copy) == 0
    assert "nothing was run" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (copy / "artifacts").rglob("*")} == before
    assert mmgrpo("plan", TINY, "--run-dir", copy) == 0
    assert "are up to date" in capsys.readouterr().out


def test_a_new_learning_rate_keeps_the_first_rollouts_and_groups_and_plan_says_why(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = keys(copy)
    assert mmgrpo("plan", TINY, "--run-dir", copy, "--set", "train.learning_rate=0.02") == 0
    lines = capsys.readouterr().out.splitlines()
    words = {line[15:].strip(): line[:15].strip() for line in lines if " · " in line}
    assert words["iteration 0 · rollout"] == words["iteration 0 · group"] == "up to date"
    assert words["evaluate dev · base"] == "up to date"
    assert words["iteration 0 · logprobs (old)"] == "up to date", "scores are shared between siblings"
    assert words["iteration 0 · train"] == "will run"
    assert words["iteration 1 · logprobs (reference)"] == "will run, later"
    assert "train.learning_rate 0.01 -> 0.02" in "\n".join(lines)
    assert words["iteration 1 · rollout"] == words["evaluate dev · after iteration 0"] == "will run, later"
    assert keys(copy) == before

    assert run(TINY, copy, "--set", "train.learning_rate=0.02") == 0
    after = keys(copy)
    assert after["iterations"][0]["rollout"] == before["iterations"][0]["rollout"]
    assert after["iterations"][0]["group"] == before["iterations"][0]["group"]
    assert after["iterations"][0]["train"] != before["iterations"][0]["train"]
    assert after["iterations"][1]["rollout"] != before["iterations"][1]["rollout"]
    assert after["policies"][0] == before["policies"][0]
    assert not set(after["policies"][1:]) & set(before["policies"])
    assert mmgrpo("verify", copy) == 0

    assert run(TINY, copy) == 0
    assert keys(copy) == before


def test_stage_by_stage_gives_what_a_whole_run_gives(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert mmgrpo("stage", "train", TINY, "--run-dir", folder, "--exec", "progress=off") == 3
    for stage in ("rollout", "group", "logprobs", "train", "evaluate"):
        assert mmgrpo("stage", stage, TINY, "--run-dir", folder, "--exec", "progress=off") == 0
        if stage == "group":
            capsys.readouterr()
            assert mmgrpo("stage", "train", TINY, "--run-dir", folder, "--exec", "progress=off") == 3
            assert "mmgrpo stage logprobs RECIPE --iteration 0" in capsys.readouterr().err
    assert artifact(folder, "rollout").manifest.key == artifact(finished, "rollout").manifest.key
    assert len(state(folder).evaluations["dev"]) == 2
    assert mmgrpo("verify", folder) == 0


def test_what_is_not_needed_is_not_scored_and_leaves_the_run(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one_step = ("--set", "train.beta=0", "--set", "train.examples_per_step=8", "--exec", "progress=off")
    assert run(TINY, copy, *one_step) == 0
    assert [sorted(stages) for stages in state(copy).iterations] == [["group", "rollout", "train"]] * 2
    capsys.readouterr()
    assert mmgrpo("stage", "logprobs", TINY, "--run-dir", copy, *one_step) == 0
    assert "the recipe needs none" in capsys.readouterr().out
    assert mmgrpo("verify", copy) == 0


def test_the_test_split_is_scored_on_demand_and_each_opening_is_counted(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mmgrpo("evaluate", TINY, "--test", "--run-dir", copy, "--exec", "progress=off") == 0
    assert "test score after iteration 1" in capsys.readouterr().out
    assert (state(copy).tests_opened, len(state(copy).evaluations["test"])) == (1, 2)
    assert mmgrpo("verify", copy) == 0


def test_verify_names_the_file_of_one_flipped_byte_in_any_artifact_or_manifest(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mmgrpo("verify", copy) == 0
    files = [path for path in copy.rglob("*") if path.is_file() and path.stat().st_size and path.suffix != ".lock"]
    files = [path for path in files if path.name not in {"report.html", "report.json", ".lock"}]
    assert len(files) > 30
    for path in files:
        whole = path.read_bytes()
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :])
        capsys.readouterr()
        assert mmgrpo("verify", copy) == 3, path
        assert str(path) in capsys.readouterr().err
        path.write_bytes(whole)
    assert mmgrpo("verify", copy) == 0


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], "its bytes changed"),
        (lambda data: data[:-1], "expected"),
        (None, "listed in the manifest but missing"),
    ],
)
def test_a_stage_refuses_an_input_that_changed_after_it_was_written_and_names_it(
    copy: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[bytes], bytes] | None, says: str
) -> None:
    file = artifact(copy, "rollout").file("invocations.parquet")
    if harm is None:
        file.unlink()
    else:
        file.write_bytes(harm(file.read_bytes()))
    regroup = ("stage", "group", TINY, "--run-dir", copy, "--set", "group.eps=0.5", "--exec", "progress=off")
    assert mmgrpo(*regroup) == 3
    error = capsys.readouterr().err
    assert str(file) in error
    assert says in error


def test_verify_names_what_else_is_wrong_beside_an_adapter_that_cannot_be_read(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = artifact(copy, "train").file("adapter") / "adapter_model.safetensors"
    decision = copy / "decisions" / "0001.json"
    last = artifact(copy, "group", 1).path / "manifest.json"
    for path in (adapter, last):
        path.unlink()
    decision.write_bytes(decision.read_bytes()[:-20])
    capsys.readouterr()
    assert mmgrpo("verify", copy) == 3
    said = capsys.readouterr().err
    assert all(str(path) in said for path in (adapter, decision, last))


def test_verify_names_an_artifact_that_is_gone(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = artifact(copy, "group").path
    shutil.rmtree(path)
    assert mmgrpo("verify", copy) == 3
    assert str(path) in capsys.readouterr().err


def test_lineage_goes_from_an_adapter_to_its_rollouts_and_back(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policies = state(finished).policies
    assert mmgrpo("lineage", finished, "--policy", policies[2][:10], "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["iteration"] for row in rows} == {0, 1}
    rollout = next(row for row in rows if row["iteration"] == 0)["rollout_id"]
    assert mmgrpo("lineage", finished, "--rollout", rollout, "--json") == 0
    fate = json.loads(capsys.readouterr().out)
    assert fate["policies"] == list(policies[1:])
    assert fate["members"]
    assert mmgrpo("lineage", finished) == 0
    assert policies[1][:12] in capsys.readouterr().out
    assert mmgrpo("lineage", finished, "--rollout", "nosuch") == 2


def test_two_runs_at_once_the_second_exits_75_and_harms_nothing(copy: Path) -> None:
    from pipeline.locks import hold

    before = keys(copy)
    command = [sys.executable, "-m", "pipeline.cli", "run", str(TINY), "--run-dir", str(copy)]
    with hold(copy / ".lock", "run"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 75
    assert "in use by another process" in done.stderr
    assert keys(copy) == before
    assert mmgrpo("verify", copy) == 0


def test_exported_groups_carry_the_tokens_of_their_members(finished: Path, tmp_path: Path) -> None:
    target = tmp_path / "groups.parquet"
    assert mmgrpo("export", "groups", finished, target, "--iteration", "1") == 0
    exported = pl.read_parquet(target)
    members = read_frame(artifact(finished, "group", 1).file("groups.parquet"), GROUPS)
    assert exported.select(members.columns).equals(members)
    assert exported["completion_ids"].null_count() == 0
    assert (exported["completion_ids"].list.len() == exported["sampling_logprobs"].list.len()).all()
    assert mmgrpo("export", "groups", finished, target) == 2
    assert mmgrpo("export", "groups", finished, tmp_path / "other", "--iteration", "9") == 2


def test_the_adapter_is_a_plain_peft_folder(finished: Path, tmp_path: Path) -> None:
    import torch
    from peft import PeftModel

    from stages.engines.models import load_model, resolve_base

    base = resolve_base("tiny-random", Path())
    ids = torch.tensor([[5, 6, 7]])
    plain = load_model(base, "float32", "cpu")(ids).logits
    model = PeftModel.from_pretrained(
        load_model(base, "float32", "cpu"), str(artifact(finished, "train", 1).file("adapter"))
    )
    assert not torch.equal(model(ids).logits, plain)


def test_help_answers_at_once_without_heavy_imports() -> None:
    code = "import sys; from pipeline import cli; cli._parser(); print([m for m in sys.modules if m in "
    code += "('torch', 'polars', 'pyarrow', 'transformers', 'trl', 'dspy', 'pydantic')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
