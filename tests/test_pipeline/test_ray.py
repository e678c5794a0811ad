"""Work shared by a local Ray cluster of several processes: nothing is lost, nothing is made twice, nothing differs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.cli import main
from pipeline.manifests import read_manifest
from pipeline.metering import Meter
from pipeline.on_ray.cluster import Cluster, cluster_of
from pipeline.on_ray.crew import AHEAD
from pipeline.on_ray.named import OURS
from pipeline.on_ray.wants import wanted_of
from pipeline.on_ray.workers import RayWorkers
from pipeline.pool import cores, pool_of
from pipeline.store import Store
from schemas.errors import DataError, RecipeError, StageError
from schemas.examples import example_row
from schemas.execution import Execution
from schemas.telemetry import read_attempts
from stages.contract import Inputs
from stages.engines import factory
from stages.engines.models import resolve_base
from stages.grouping.rules import rules_of
from stages.grouping.sources import policy_ages
from stages.grouping.tables import open_tables
from stages.grouping.write import write_tables
from stages.programs.shards import sample
from stages.programs.shared import Shared, shared_by
from tests.chaos.servers import OneByOne
from tests.chaos.soak_ends import digests
from tests.test_e2e.kit import RECIPE, own_recipe, run
from tests.test_e2e.teachers_kit import artifact_of
from tests.test_pipeline import ray_kit as kit
from tests.test_pipeline.test_ingest_processes import RECORDED, SAMPLES
from tests.test_stages import group_kit
from tests.test_stages.ingest_kit import TRACES
from tests.test_stages.programs_kit import FolderOut, recipe_of
from tests.test_stages.server_kit import Dialect

pytestmark = pytest.mark.ray
SETTINGS = {
    "actors": 2,
    "cpus": 0.25,
    "patience_s": 90,
    "object_store_mib": 100,
    "tries": 2,
    "env": ("KIT_SECRET",),
    "examples": 2,
}
KIT = (*OURS, "tests")
"""Whose functions workers are sent by these tests."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with (
        pytest.MonkeyPatch.context() as patch,
        cluster_of(Execution.model_validate({"executor": "ray", "ray": SETTINGS}), recipe_of(), print) as made,
    ):
        patch.setenv("KIT_SECRET", "hush")
        assert made is not None
        wanted = made.wanted()
        assert wanted.actors == 2
        made._wanted = replace(wanted, setting=replace(wanted.setting, packages=KIT))
        yield made


@pytest.fixture(scope="module")
def workers(cluster: Cluster) -> Iterator[RayWorkers]:
    """For tests in which nobody dies: the same two actors for all."""
    with cluster.workers() as made:
        yield made


def numbers(count: int) -> dict[str, int]:
    return {str(number): number for number in range(count)}


def test_every_task_is_done_once_by_actors_and_not_here(workers: RayWorkers, tmp_path: Path) -> None:
    found = list(workers.stream(partial(kit.Made, tmp_path), kit.slow_pids, numbers(9), runs=1))
    assert sorted((name, square) for name, (square, _) in found) == [(str(n), n * n) for n in range(9)]
    assert os.getpid() not in {pid for _, (_, pid) in found}


def test_tasks_are_drawn_when_somebody_is_free_for_them(workers: RayWorkers, tmp_path: Path) -> None:
    drawn = 0

    def source() -> Iterator[tuple[str, int]]:
        nonlocal drawn
        for number in range(40):
            drawn += 1
            yield str(number), number

    done = 0
    for _ in workers.crew.stream(partial(kit.Made, tmp_path), kit.pids, source()):
        done += 1
        assert drawn - done <= 2 * AHEAD
    assert done == 40


def test_an_actor_has_the_variables_that_were_named_and_nobody_prints_them(
    workers: RayWorkers, cluster: Cluster, tmp_path: Path
) -> None:
    found = dict(workers.stream(partial(kit.Made, tmp_path), kit.told_env, {"a": "KIT_SECRET", "b": "HOME_"}, runs=1))
    assert found == {"a": "hush", "b": None}
    assert "hush" not in repr(cluster.wanted())


def test_errors_keep_their_kind_and_a_defect_its_traceback(workers: RayWorkers, tmp_path: Path) -> None:
    make = partial(kit.Made, tmp_path)
    with pytest.raises(DataError, match="the file x is broken"):
        list(workers.stream(make, kit.refuses, numbers(1), runs=1))
    with pytest.raises(StageError, match=r"(?s)worker on .* failed.*ray_kit.py.*ZeroDivisionError: in a program"):
        list(workers.stream(make, kit.defect, numbers(1), runs=1))
    with pytest.raises(DataError, match="the base model is not here"):
        list(workers.stream(kit.broken_session, kit.pids, numbers(1), runs=1))


def test_a_task_that_kills_every_actor_ends_the_stage_and_is_named(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.workers() as workers, pytest.raises(StageError, match="2 actors died while they worked on 3"):
        list(workers.stream(partial(kit.Made, tmp_path), kit.dies_always, {"3": 3}, runs=1))


def test_workers_know_how_many_threads_they_have_before_they_import_what_computes(
    workers: RayWorkers, tmp_path: Path
) -> None:
    """Polars settles it at its import, and what a worker is sent holds a table."""
    table = pl.DataFrame({"x": [1, 2]})
    assert list(workers.map(partial(kit.threads_beside, table), [table])) == [(2, 2, 1)]
    made = workers.stream(partial(kit.WithTable, table), kit.threads, {"a": table}, runs=1)
    assert dict(made) == {"a": (2, 2, 1)}
    assert pl.thread_pool_size() == cores()


def test_a_worker_refuses_to_call_what_is_not_ours(cluster: Cluster, tmp_path: Path) -> None:
    wanted = cluster.wanted()
    workers = RayWorkers(
        lambda: replace(wanted, setting=replace(wanted.setting, packages=OURS)), 8, cluster.tasks_at_once
    )
    with pytest.raises(StageError, match=r"asked to call square of tests.test_pipeline.ray_kit; expected"):
        list(workers.map(kit.square, range(3)))
    with pytest.raises(StageError, match=r"asked to call Made of tests.test_pipeline.ray_kit; expected"):
        list(workers.stream(partial(kit.Made, tmp_path), kit.pids, numbers(1), runs=1))
    workers.close(kindly=False)


def test_another_build_is_refused_and_says_what_differs(cluster: Cluster, tmp_path: Path) -> None:
    wanted = cluster.wanted()
    other = replace(wanted, setting=replace(wanted.setting, build={**wanted.setting.build, "polars": "0.1"}))
    workers = RayWorkers(lambda: other, 8, cluster.tasks_at_once)
    with pytest.raises(StageError, match=r"polars .* \(expected 0.1\)"):
        list(workers.stream(partial(kit.Made, tmp_path), kit.pids, numbers(1), runs=1))
    with pytest.raises(StageError, match=r"polars .* \(expected 0.1\)"):
        list(workers.map(kit.square, range(3)))
    workers.close(kindly=False)


def test_tasks_without_a_state_come_in_order_also_where_a_process_died(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.workers() as workers:
        assert list(workers.map(partial(kit.square_or_die, tmp_path), range(12))) == [n * n for n in range(12)]
        assert (tmp_path / "died").exists()


JOBS = {
    row["example_id"]: kit.RUNS.of(row, 3)
    for row in (example_row("train", {"x": f"word{index}"}, None, None) for index in range(5))
}


def shards(folder: Path, workers: RayWorkers | None, load: Any = kit.program) -> dict[str, bytes]:
    """What sampling commits."""
    out = FolderOut(folder)
    shared = None if workers is None else Shared(workers, load, kit.nothing)
    sample(load(), [JOBS], kit.scripted, out, shape=kit.shape(), concurrency=4, shared=shared)
    assert out.steps[-1] == (15, 15)
    if workers is not None:
        assert out.figures["prompt_tokens"] > 0
    return {name: path.read_bytes() for name, path in out.committed().items()}


def test_rollouts_made_by_actors_are_byte_for_byte_those_made_here(workers: RayWorkers, tmp_path: Path) -> None:
    here, there = shards(tmp_path / "here", None), shards(tmp_path / "there", workers)
    assert here == there
    assert len(here) == 2 * len(JOBS)


def test_what_an_actor_lost_is_made_by_another_and_its_time_is_not_made_up(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "spared").mkdir()
    (tmp_path / "spared" / "died").touch()
    here = shards(tmp_path / "here", None, partial(kit.mortal, tmp_path / "spared", "word2"))
    meter = Meter(lambda: 0)
    with cluster.workers(meter) as workers:
        there = shards(tmp_path / "there", workers, partial(kit.mortal, tmp_path, "word2"))
        assert meter.read().core_seconds is None, "not known before they have ended"
    assert (tmp_path / "died").exists()
    assert here == there
    assert meter.read().core_seconds is None, "what the lost one had spent is not known"


def test_a_stage_goes_on_here_from_what_actors_committed(workers: RayWorkers, tmp_path: Path) -> None:
    out = FolderOut(tmp_path / "out", fail_after=4)
    with pytest.raises(KeyboardInterrupt):
        sample(
            kit.program(),
            [JOBS],
            kit.scripted,
            out,
            shape=kit.shape(),
            concurrency=4,
            shared=Shared(workers, kit.program, kit.nothing),
        )
    assert len(out.commits) == 4
    assert shards(tmp_path / "out", None) == shards(tmp_path / "here", None)


def test_a_program_of_this_process_alone_is_refused(workers: RayWorkers, tmp_path: Path) -> None:
    live = recipe_of("stages.programs.live:program")
    with pytest.raises(RecipeError, match="object of this Python process"):
        shared_by(Inputs({}, {}, tmp_path, workers), live, kit.program)


@pytest.mark.parametrize("group", [{}, {"scale": "module_std"}], ids=["plain", "two passes"])
@pytest.mark.parametrize("shuffled", [False, True], ids=["ordered", "shuffled"])
def test_groups_made_by_tasks_are_byte_for_byte_those_made_here(
    cluster: Cluster, tmp_path: Path, group: dict[str, Any], shuffled: bool
) -> None:
    rewards = [[float((e * i) % 5) for i in range(6)] for e in range(40)]
    rollouts, calls = group_kit.one_module(*rewards)
    if shuffled:
        rollouts, calls = rollouts[::-1], calls[3:] + calls[:3]
    files = [group_kit.write_inputs(tmp_path, rollouts, calls)]
    rules = rules_of(group_kit.recipe(**group))

    def made(folder: Path, workers: RayWorkers | None) -> list[bytes]:
        out = group_kit.MemoryOut(folder)
        ages = policy_ages(pl.DataFrame(group_kit.POLICIES))
        totals = write_tables(open_tables(files, rules), ages, rules, 60, out, workers=workers)
        assert totals.invocations == 240
        assert out.said[-1] == (240, 240)
        return [path.read_bytes() for _, path in sorted(out.shards.items())]

    with cluster.workers() as workers:
        there = made(tmp_path / "there", workers)
        assert workers.core_seconds
    assert there == made(tmp_path / "here", None)


def test_what_a_lost_actor_had_left_in_its_folder_goes_and_is_made_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.on_ray.pool.WRITING", (kit.write_or_die,))
    made = tmp_path / "made"
    made.mkdir()
    with pool_of(cluster, partial(kit.Writing, made, tmp_path)) as pool:
        assert list(pool.each(kit.write_or_die, range(20))) == [n * n for n in range(20)]
    assert (tmp_path / "died").exists()
    written = [int(line) for path in made.glob("*/numbers") for line in path.read_text().split()]
    assert sorted(written) == list(range(20))


def test_a_snapshot_made_by_actors_is_the_one_that_this_process_makes(cluster: Cluster, tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path / "own")
    recipe.write_text(recipe.read_text().replace('inputs = ["word"]', 'inputs = ["question"]'))
    traces = [str(TRACES / name) for name in SAMPLES]
    shared = [f"--exec={name}" for name in ("executor=ray", "ray.actors=1", "ray.cpus=0.25", "progress=off")]
    assert main(["ingest", str(recipe), *traces, "--snapshots", str(tmp_path / "there"), *shared]) == 0
    ((_, path),) = Store(tmp_path / "there").all()
    assert Store(tmp_path / "there").unfinished() == []
    manifest = read_manifest(path / "manifest.json")
    assert manifest.digest == RECORDED
    (attempt,) = read_attempts(path)
    assert attempt.core_seconds


TAUGHT = """
[lms.other]
kind = "base"
[teachers.other]
lm = "other"
rollouts = 1
"""


def test_a_teachers_rollouts_and_scores_by_actors_are_byte_for_byte_those_made_here(
    cluster: Cluster, tmp_path: Path
) -> None:
    """What samples is a server that computes one request at a time, so that its numbers do not depend on company."""
    recipe = own_recipe(tmp_path / "own", recipe=RECIPE + TAUGHT)
    server = OneByOne(resolve_base("tiny-random", tmp_path, None), Dialect(), "tiny")
    asked = ("--set", "run.iterations=1", "--exec", "engine=server", "--exec", f"server.urls={server.url}")
    here, there = tmp_path / "here", tmp_path / "there"
    try:
        assert run(recipe, here, *asked) == 0
        shutil.copytree(here, there)
        scored = max((here / "artifacts" / "evaluate").glob("[!.]*"), key=lambda path: path.stat().st_mtime)
        again = [artifact_of(there, "teacher.other").path, there / scored.relative_to(here)]
        for folder in again:
            shutil.rmtree(folder)
        shared = ("executor=ray", "ray.actors=1", "ray.cpus=0.25", "ray.examples=1")
        assert run(recipe, there, *asked, *(f"--exec={each}" for each in shared)) == 0
    finally:
        factory.release()
        server.close()
    assert digests(there) == digests(here)
    for folder in again:
        (attempt,) = read_attempts(folder)
        assert attempt.core_seconds, "that of actors is counted"


def test_a_cluster_has_room_or_says_that_it_has_none(cluster: Cluster) -> None:
    asked = Execution.model_validate({"executor": "ray", "ray": {"cpus": 4096}})
    with pytest.raises(StageError, match="an actor wants 4096 cores, and this machine has"):
        wanted_of(asked, None, cluster.note, cluster.folder, own=True)
    assert wanted_of(asked, None, cluster.note, cluster.folder, own=False).options["num_cpus"] == 4096


def test_an_address_at_which_nothing_answers_is_told_and_not_asked_for_minutes() -> None:
    code = """
from pipeline.on_ray.cluster import Cluster
from schemas.execution import Execution
Cluster(Execution.model_validate({"executor": "ray", "ray": {"address": "127.0.0.1:1"}}), None, print).connect()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "StageError: Ray at 127.0.0.1:1 cannot be used: [Errno 111] Connection refused." in done.stderr


@pytest.mark.slow
def test_a_cluster_that_asks_for_a_token_is_told_of(cluster: Cluster) -> None:
    import ray

    code = f"""
from pipeline.on_ray.cluster import Cluster
from schemas.execution import Execution
address = {ray.get_runtime_context().gcs_address!r}
Cluster(Execution.model_validate({{"executor": "ray", "ray": {{"address": address}}}}), None, print).connect()
"""
    there = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=there, capture_output=True, text=True, check=False, timeout=200)
    assert "cannot be used: Failed to connect to Ray cluster" in done.stderr
    assert "set RAY_AUTH_MODE=token)" in done.stderr
    subprocess.run(command, env=there | {"RAY_AUTH_MODE": "token"}, check=True, timeout=200)
