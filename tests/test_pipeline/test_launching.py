"""The train stage starts its processes itself: what cannot be is refused, and nothing is lost between them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from pipeline.doctor import _processes
from pipeline.launching.agent import main as agent
from pipeline.launching.failures import failure
from pipeline.launching.settings import check_launch, crowded, launch_of, refuse_nodes
from pipeline.launching.team import _environment
from pipeline.recipes import load_execution, load_recipe
from schemas.errors import RecipeError
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
