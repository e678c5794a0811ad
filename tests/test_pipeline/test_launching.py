"""The train stage starts its processes itself: what cannot be is refused, and nothing is lost between them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.doctor import _processes
from pipeline.launching.agent import main as agent
from pipeline.launching.failures import FAILURES, failure, note
from pipeline.launching.link import Link, LinkedOut
from pipeline.launching.place import own_folder
from pipeline.launching.said import Said
from pipeline.launching.settings import check_launch, crowded, launch_of, refuse_nodes
from pipeline.launching.team import _environment
from pipeline.recipes import load_execution, load_recipe
from schemas.errors import ContractError, DataError, MmgrpoError, RecipeError, StageError, Violation
from schemas.execution import Execution, LaunchSection
from tests.test_e2e.kit import ROOT, TINY, mmgrpo

SCHEDULER = ("WORLD_SIZE", "SLURM_NODEID", "JOB_COMPLETION_INDEX", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def _no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SCHEDULER, "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def settings(**train: object) -> Execution:
    return Execution(device="cpu", train=LaunchSection.model_validate(train))


def test_one_process_starts_nothing() -> None:
    assert launch_of(settings()) is None


@pytest.mark.parametrize(
    ("train", "told"),
    [
        ({"processes": 0}, "greater than 0"),
        ({"nodes": 2, "node_rank": 2}, "the nodes are 0 to 1"),
        ({"rendezvous": "node1"}, "expected HOST:PORT"),
        ({"rendezvous": "node1:99999"}, "expected HOST:PORT"),
        ({"workers": 2}, "Extra inputs"),
    ],
)
def test_settings_that_make_no_sense_are_refused(train: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        settings(**train)


@pytest.mark.parametrize(
    ("train", "environment", "told"),
    [
        ({"nodes": 2, "rendezvous": "a:1"}, {}, "train.node_rank=0 on the first"),
        ({"nodes": 2, "node_rank": 1}, {}, "train.rendezvous="),
        ({"nodes": 2, "rendezvous": "a:1"}, {"SLURM_NODEID": "2"}, "SLURM_NODEID is 2"),
    ],
)
def test_a_node_that_does_not_know_its_place_is_told_what_to_type(
    monkeypatch: pytest.MonkeyPatch, train: dict[str, object], environment: dict[str, str], told: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RecipeError, match=told):
        launch_of(settings(**train))


def test_a_scheduler_tells_a_node_its_place_unless_the_settings_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_NODEID": "1", "MASTER_ADDR": "node7", "MASTER_PORT": "4000"}.items():
        monkeypatch.setenv(name, value)
    told = launch_of(settings(nodes=3, processes=2))
    assert told
    assert (told.node_rank, told.rendezvous, told.size, told.first) == (1, "node7:4000", 6, False)
    told = launch_of(settings(nodes=3, node_rank=0, rendezvous="other:5"))
    assert told
    assert (told.node_rank, told.rendezvous, told.first) == (0, "other:5", True)


def test_threads_of_a_process_are_the_settings_the_environments_or_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def threads(execution: Execution) -> int | None:
        launch = launch_of(execution)
        return launch and launch.threads

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)))
    assert threads(settings(processes=2)) == 3
    assert threads(settings(processes=9)) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads(settings(processes=2)) == 5
    assert threads(settings(processes=2).model_copy(update={"threads": 4})) == 4


def test_more_processes_than_gpus_are_refused_and_a_cpu_has_no_such_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    with pytest.raises(RecipeError, match=r"2 GPU.*train.processes=2"):
        launch_of(settings(processes=3).model_copy(update={"device": "cuda"}))
    assert launch_of(settings(processes=2).model_copy(update={"device": "cuda"}))
    assert launch_of(settings(processes=3))


def test_what_could_only_fail_after_the_rollouts_is_refused_before_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = ["run", TINY, "--run-dir", tmp_path / "run", "--exec", "train.processes=2"]
    assert mmgrpo(*run, "--set", "train.module_norms=true") == 2
    assert "train.module_norms goes with one process" in capsys.readouterr().err
    assert mmgrpo("run", TINY, "--run-dir", tmp_path / "run", "--exec", "train.nodes=2") == 2
    assert "mmgrpo render slurm" in capsys.readouterr().err
    assert not list(tmp_path.rglob("manifest.json"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RecipeError, match="launched as 2 processes already"):
        check_launch(settings(processes=2), load_recipe(TINY, []).recipe)
    refuse_nodes(settings(processes=2), "mmgrpo run")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("distributed_type: DEEPSPEED", "DeepSpeed"),
        ("distributed_type: MEGATRON_LM", "MEGATRON_LM is not supported"),
        ("distributed_type: FSDP\nnum_processes: 4", "num_processes is 4.*make 2"),
        ("distributed_type: FSDP\nnum_machines: 2", "num_machines is 2"),
        ("- a list", "not a file of `accelerate config`"),
        ("a: [", "not YAML"),
        (None, "cannot be read"),
    ],
)
def test_a_file_of_accelerate_that_cannot_be_followed_is_refused(tmp_path: Path, text: str | None, told: str) -> None:
    file = tmp_path / "fsdp.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(RecipeError, match=told):
        check_launch(settings(processes=2, config=str(file)), load_recipe(TINY, []).recipe)


def test_a_file_of_accelerate_for_one_process_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"set train\.processes"):
        check_launch(settings(config="fsdp.yaml"), load_recipe(TINY, []).recipe)


def test_the_file_is_found_from_wherever_the_command_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    execution = load_execution(None, ["train.processes=2", "train.config=fsdp.yaml"])
    assert execution.train.config == str(tmp_path / "fsdp.yaml")
    assert settings(processes=2, config="fsdp.yaml").train.config == str(tmp_path / "fsdp.yaml")
    assert Execution(cache="models").cache == str(tmp_path / "models")


class Kept:
    """An `Out` that remembers what it was told."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.told = scratch, list[Any]()

    def commit_shard(self, name: str, file: Path) -> None:
        if not file.exists():
            raise OSError(28, "No space left on device", str(file))
        self.told.append(("commit", name, file.read_text()))

    def committed(self, prefix: str = "") -> dict[str, Path]:
        return {f"{prefix}a": self.scratch / "a"}

    def drop(self, prefix: str) -> None:
        self.told.append(("drop", prefix))

    def exclude(self, reason: str, count: int = 1) -> None:
        self.told.append(("exclude", reason, count))

    def progress(self, done: int, total: int, unit: str, **figures: float | str) -> None:
        self.told.append(("progress", done, total, unit, figures))

    def telemetry(self, **figures: float) -> None:
        self.told.append(("telemetry", figures))


def test_what_process_0_writes_arrives_whole_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "shard").write_text("of bytes")
    kept = Kept(tmp_path)

    def process_0() -> None:
        out = LinkedOut(tmp_path / "link", tmp_path)
        out.commit_shard("adapter/a.safetensors", tmp_path / "shard")
        assert out.committed("b") == {"ba": tmp_path / "a"}
        out.drop("plan")
        out.exclude("no_tokens", 3)
        out.progress(1, 2, "steps", loss=0.1, note="—")
        out.telemetry(seconds=1.5)
        out.done({"loss": 0.1 + 0.2, "reason": None})

    with Link(tmp_path / "link", kept) as link:
        other = threading.Thread(target=process_0)
        other.start()
        while other.is_alive():
            link.serve(0.05)
        link.serve(0)
    assert kept.told == [
        ("commit", "adapter/a.safetensors", "of bytes"),
        ("drop", "plan"),
        ("exclude", "no_tokens", 3),
        ("progress", 1, 2, "steps", {"loss": 0.1, "note": "—"}),
        ("telemetry", {"seconds": 1.5}),
    ]
    assert link.metrics == {"loss": 0.1 + 0.2, "reason": None}


def test_what_the_disk_refuses_the_command_ends_both_ends(tmp_path: Path) -> None:
    ended = []

    def process_0() -> None:
        try:
            LinkedOut(tmp_path / "link", tmp_path).commit_shard("a", tmp_path / "nowhere")
        except ConnectionError as error:
            ended.append(error)

    other = threading.Thread(target=process_0)
    with Link(tmp_path / "link", Kept(tmp_path)) as link:
        other.start()
        with pytest.raises(OSError, match="No space left"):
            link.serve(30)
    other.join(30)
    assert ended


def test_a_process_0_that_is_gone_is_no_reason_to_wait(tmp_path: Path) -> None:
    with Link(tmp_path / "link", Kept(tmp_path)) as link:
        with socket.socket(socket.AF_UNIX) as gone:
            gone.connect(str(tmp_path / "link"))
            gone.sendall(b'{"do": "dro')
        began = time.monotonic()
        link.serve(60)
        assert time.monotonic() - began < 30
        assert link.metrics is None


def test_a_started_process_ends_when_its_parent_was_killed(tmp_path: Path) -> None:
    child = "import os, time, pipeline.launching.watch as w; w.end_with(os.getppid()); print(os.getpid(), flush=True)"
    child += "; time.sleep(120)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout
    number = int(process.stdout.readline())
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{number}/stat").exists() and " Z " not in Path(f"/proc/{number}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_a_killed_command_left_goes_with_the_next_once_its_processes_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = """
import subprocess, sys, time, pipeline.launching.place as place
with place.own_folder() as (made, lock):
    heir = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], pass_fds=(lock,))
    print(made, heir.pid, flush=True)
    time.sleep(120)
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as below:
        monkeypatch.setattr("tempfile.tempdir", below)
        environment = os.environ | {"TMPDIR": below}
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, env=environment)
        assert process.stdout
        theirs, heir = process.stdout.readline().decode().split()
        process.kill()
        process.wait()
        with own_folder() as (mine, _):
            assert sorted(Path(below).iterdir()) == sorted([mine, Path(theirs)])
        os.kill(int(heir), signal.SIGKILL)
        process.stdout.read()  # until the heir has ended too
        with own_folder() as (mine, _):
            assert list(Path(below).iterdir()) == [mine]
        assert not list(Path(below).iterdir())


def test_what_process_0_says_is_said_as_it_comes_but_for_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = {stream: tmp_path / "x" / "attempt_0" / "0" / f"{stream}.log" for stream in ("stdout", "stderr")}
    logs["stdout"].parent.mkdir(parents=True)
    said = Said(tmp_path)
    said.tell()
    logs["stdout"].write_text("View the run at http://a/b\n3 calls are n")
    logs["stderr"].write_text("a warning\nTraceback (most recent call last):\n  File …\n")
    said.tell()
    assert capsys.readouterr() == ("View the run at http://a/b\n", "a warning\n")
    with logs["stdout"].open("a") as file:
        file.write("ot trained on")
    said.tell()
    assert capsys.readouterr() == ("", "")
    said.tell(last=True)
    assert capsys.readouterr() == ("3 calls are not trained on\n", "Traceback (most recent call last):\n  File …\n")


@pytest.mark.parametrize(
    ("execution", "told"),
    [
        (settings(processes=2), None),
        (settings(processes=3), "3 processes on 2 core(s) take turns.*--exec train.processes=2$"),
        (settings(processes=2).model_copy(update={"threads": 2}), "2 processes of 2 threads each.*: --exec threads=1$"),
    ],
)
def test_processes_that_must_take_turns_are_told_before_they_start(
    execution: Execution, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    said = crowded(execution)
    assert said is None if told is None else re.search(told.replace("(s)", r"\(s\)"), str(said))


def test_plan_and_doctor_tell_of_processes_that_must_take_turns(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert mmgrpo("plan", TINY, "--run-dir", tmp_path, "--exec", "train.processes=500") == 0
    assert "train.processes = 500: 500 processes on" in capsys.readouterr().err
    (finding,) = _processes(settings(processes=500))
    assert finding.fine
    assert "train.processes = 500: 500 processes on" in finding.state


def ended(folder: Path, *exits: int) -> None:
    found = [{"rank": rank, "local_rank": rank, "exit": code} for rank, code in enumerate(exits) if code]
    (folder / FAILURES).write_text(json.dumps(found))


def test_a_killed_process_is_named_before_those_that_lost_it(tmp_path: Path) -> None:
    ended(tmp_path, -signal.SIGTERM, -signal.SIGSEGV, 1)
    log = tmp_path / "logs" / "x" / "attempt_0" / "1" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number}\n" for number in range(30)))
    note(tmp_path, "0", ConnectionError("closed by peer"))
    error = failure(tmp_path, tmp_path / "logs", "", 3, "")
    assert isinstance(error, StageError)
    assert "process 1 of the 3 that train was ended by SIGSEGV" in str(error)
    assert "same command goes on" in str(error)
    assert "| line 29" in str(error)
    assert "line 17\n" not in str(error)


def test_running_out_of_memory_is_named_and_what_torchrun_ended_is_not_blamed(tmp_path: Path) -> None:
    ended(tmp_path, -signal.SIGTERM, -signal.SIGKILL)
    error = failure(tmp_path, tmp_path / "logs", "", 2, "")
    assert "process 1 of the 2 that train was ended by SIGKILL, as the kernel does when memory runs out" in str(error)
    ended(tmp_path, -signal.SIGTERM, 1)
    assert "process 1 of the 2 that train failed with exit code 1" in str(
        failure(tmp_path, tmp_path / "logs", "", 2, "")
    )


@pytest.mark.parametrize(
    "raised",
    [
        RecipeError("a recipe"),
        DataError("some data"),
        StageError("ESS 0.1 is below train.ess_floor"),
        ContractError("groups", "g.parquet", [Violation("unique", 2, ("a",))], "hint"),
    ],
)
def test_an_error_of_a_process_is_that_of_the_command(tmp_path: Path, raised: MmgrpoError) -> None:
    ended(tmp_path, 1, 1)
    note(tmp_path, "0", raised)
    error = failure(tmp_path, tmp_path / "logs", "", 2, "")
    assert isinstance(error, MmgrpoError)
    assert (str(error), error.exit_code) == (str(raised), raised.exit_code)


def test_a_full_disk_is_a_full_disk_for_the_command_too(tmp_path: Path) -> None:
    ended(tmp_path, 1)
    note(tmp_path, "0", OSError(28, "No space left on device", "/run/a"))
    error = failure(tmp_path, tmp_path / "logs", "", 2, "")
    assert isinstance(error, OSError)
    assert (error.errno, error.filename) == (28, "/run/a")


def test_nodes_that_did_not_meet_are_told_from_what_torchrun_said(tmp_path: Path) -> None:
    error = failure(
        tmp_path, tmp_path / "logs", "noise\nDistNetworkError: timed out after 600 s\n", 4, " (node 1 of 2)"
    )
    assert "the 4 processes that train (node 1 of 2) did not come together" in str(error)
    assert "timed out after 600 s" in str(error)


def test_settings_of_an_outer_torchrun_do_not_reach_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "9")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    launch = launch_of(settings(processes=2))
    assert launch
    told = _environment(launch)
    assert "PET_NNODES" not in told
    assert told["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "/mine"]
    assert told["OMP_NUM_THREADS"] == str(launch.threads)


def test_a_file_that_accelerate_does_not_take_is_an_error_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate")
    monkeypatch.setattr("pipeline.launching.agent.end_with", lambda _: None)
    file = tmp_path / "fsdp.yaml"
    file.write_text("distributed_type: FSDP\nmystery: 1\n")
    assert agent(tmp_path, os.getppid(), str(file), 2, ["--nnodes", "1", "x"]) == 2
    error = failure(tmp_path, tmp_path / "logs", "", 2, "")
    assert isinstance(error, RecipeError)
    assert "accelerate does not take it" in str(error)
