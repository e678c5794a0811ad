"""Work shared by Ray: a worker is killed at a random moment, or the command that shares its work out.

One cluster and one server stand beside all of it, as on machines that outlive a command. The server computes a request
at a time, so that its numbers do not depend on who asks meanwhile.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.harness import Bench, Ended, Tally
from tests.chaos.servers import OneByOne, equal
from tests.chaos.signals import hits

STAGES = ("rollout", "evaluate", "group", "ingest")
CASES = [(victim, stage) for stage in STAGES for victim in ("worker", "command")]
ACTORS = ("executor=ray", "ray.actors=2", "ray.cpus=0.5", "ray.examples=1", "ray.patience_s=300", "threads=1")
TRACES = ("otlp_json", "otel_genai_flat", "langfuse", "dspy_history", "openinference")
GONE_S = 60.0
"""How long workers of a dead command may take to end."""
READY_S = 300.0
BUSY = {"group": (b"ray::do",)}
ACTOR = (b"ray::Actor", b"ray::Actor.work")
"""What a worker calls itself: from its start on, and while it does tasks."""


@dataclass(frozen=True)
class Beside:
    """What stands beside the commands."""

    cluster: str
    """Its address."""
    raylet: int
    """The process that the cluster's workers are children of."""
    server: str


@contextmanager
def staying(bench: Bench, name: str, work: Callable[[], str]) -> Iterator[str]:
    """A child that does something, tells what came of it, and stays until it is left."""
    told = bench.folder / f"{name}.told"
    told.unlink(missing_ok=True)

    def stay() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        draft = told.with_suffix(".draft")
        draft.write_text(work())
        draft.rename(told)
        signal.sigwait({signal.SIGTERM})
        os._exit(0)

    child, until = bench.start([], stay, name), time.monotonic() + READY_S
    try:
        while not told.exists():
            assert time.monotonic() < until, (bench.folder / f"{name}.log").read_text()
            assert os.waitpid(child, os.WNOHANG)[0] == 0, (bench.folder / f"{name}.log").read_text()
            time.sleep(0.05)
        yield told.read_text()
    finally:
        os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)


KEPT: list[object] = []
"""What ends with this process and not before."""


def cluster() -> str:
    """Start one. Returns its address, and its raylet's process."""
    import ray

    from pipeline.on_ray.cluster import Cluster
    from schemas.execution import Execution

    found = {"executor": "ray", "ray": {"object_store_mib": 100}}
    own = Cluster(Execution.model_validate(found), None, print)
    KEPT.append(own)
    own.connect()
    (raylet,) = [pid for pid in children(os.getpid()) if b"raylet/raylet" in said_of(pid)]
    return f"{ray.get_runtime_context().gcs_address} {raylet}"


def server() -> str:
    """Start one. Returns its address."""
    from stages.engines.models import resolve_base
    from tests.test_stages.server_kit import Dialect

    return OneByOne(resolve_base("tiny-random", Path.cwd(), None), Dialect(), "tiny").url


def children(parent: int) -> list[int]:
    """The processes that a process has started."""
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for path in tasks for pid in path.read_text().split()]


def said_of(pid: int) -> bytes:
    """What a process is called; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def workers(beside: Beside, titles: tuple[bytes, ...]) -> list[int]:
    """The cluster's workers that call themselves so."""
    return [pid for pid in children(beside.raylet) if said_of(pid).startswith(titles)]


def killing(beside: Beside, victim: str, title: bytes, after: float, log: Path) -> Callable[[], None]:
    """In the child of a command: wait for a worker at work, and a little longer, and kill it, or the command."""
    from stages.engines import factory

    own = factory._make

    def watch() -> None:
        while not (busy := workers(beside, (title,))):
            time.sleep(0.002)
        time.sleep(after)
        with log.open("a") as file:
            file.write("hit worker\n")
        os.kill(busy[0] if victim == "worker" else os.getpid(), signal.SIGKILL)

    def disturb() -> None:
        factory._make = own
        threading.Thread(target=watch, daemon=True).start()

    return disturb


def quietly() -> Callable[[], None]:
    """In the child of a command: the engine that the command line names, not the script."""
    from stages.engines import factory

    own = factory._make

    def prepare() -> None:
        factory._make = own

    return prepare


def shared(bench: Bench, faults: int, draw: random.Random) -> Tally:
    """Whatever dies, the same command without Ray ends with what it makes alone."""
    tally = Tally("ray")
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray asks for one, and keeps it in the user's folder
    with staying(bench, "server", server) as url, staying(bench, "cluster", cluster) as told:
        address, raylet = told.split()
        beside = Beside(address, int(raylet), url)
        bench.settings += ("run.iterations=1",)
        run, snapshots = bench.fresh("ray-quiet"), bench.fresh("ray-quiet-snapshots")
        for ended in (job(bench, "run", run, beside), ingest(bench, snapshots)):
            if ended.code != 0:
                tally.blame(f"without any fault it ended with {ended.code}: {ended.said}")
        idle = 0
        while tally.injected < faults and not tally.wrong:
            before = tally.injected
            victim, stage = CASES[tally.injected % len(CASES)]
            one(bench, tally, beside, victim, stage, draw)
            idle = 0 if tally.injected > before else idle + 1
            if idle > 6:
                tally.blame(f"one {stage} after another ended before its {victim} could be killed")
    return tally


def one(bench: Bench, tally: Tally, beside: Beside, victim: str, stage: str, draw: random.Random) -> None:
    """A stage is made anew by Ray, with one death in it; then without Ray."""
    quiet = bench.folder / ("ray-quiet-snapshots" if stage == "ingest" else "ray-quiet")
    target = bench.fresh("ray-disturbed")
    if stage != "ingest":
        shutil.copytree(quiet, target)
        shutil.rmtree(target / "artifacts" / stage)
    log = bench.folder / "ray.hits"
    log.unlink(missing_ok=True)
    title = draw.choice(BUSY.get(stage, ACTOR))
    disturb = killing(beside, victim, title, draw.uniform(0.0, 0.1 if stage in BUSY else 0.5), log)
    by_ray = (*ACTORS, f"ray.address={beside.cluster}")
    if stage == "ingest":
        ended = ingest(bench, target, by_ray, disturb)
    else:
        ended = job(bench, "stage", target, beside, by_ray, disturb, stage=stage)
    faults = len(hits(log))
    if faults:
        tally.hit(f"{victim}: {stage}")
    killed = victim == "command" and faults
    if ended.code != (-signal.SIGKILL if killed else 0):
        tally.blame(f"{stage}, its {victim} killed: ended with {ended.code}: {ended.said}")
    until = time.monotonic() + GONE_S
    while workers(beside, ACTOR) and time.monotonic() < until:
        time.sleep(0.1)
    if left := workers(beside, ACTOR):
        tally.blame(f"{stage}, its {victim} killed: {len(left)} workers are left")
    if stage == "ingest":
        same(tally, target, quiet, ingest(bench, target), faults)
    else:
        equal(bench, tally, target, quiet, job(bench, "run", target, beside), faults)


def job(
    bench: Bench,
    name: str,
    run: Path,
    beside: Beside,
    more: tuple[str, ...] = (),
    disturb: Callable[[], None] | None = None,
    stage: str | None = None,
) -> Ended:
    """A command on a run folder."""
    options = bench.command(name, run)
    if stage is not None:
        options.insert(1, stage)
    for setting in ("engine=server", f"server.urls={beside.server}", *more):
        options += ["--exec", setting]
    return bench.wait(bench.start(options, disturb or quietly()))


def ingest(
    bench: Bench, snapshots: Path, more: tuple[str, ...] = (), disturb: Callable[[], None] | None = None
) -> Ended:
    """An ingest of the samples."""
    from tests.test_e2e.kit import ROOT, own_recipe

    recipe = bench.folder / "asked" / "r" / "recipe.toml"
    if not recipe.exists():
        recipe = own_recipe(recipe.parent)
        recipe.write_text(recipe.read_text().replace('inputs = ["word"]', 'inputs = ["question"]'))
    traces = [str(ROOT / "data" / "traces" / name) for name in TRACES]
    options = ["ingest", str(recipe), *traces, "--snapshots", str(snapshots)]
    for setting in ("progress=off", *more):
        options += ["--exec", setting]
    return bench.wait(bench.start(options, disturb or quietly()))


def same(tally: Tally, snapshots: Path, quiet: Path, ended: Ended, faults: int) -> None:
    """The ingest ended well, with the very snapshot of the quiet one, and with nothing left beside it."""
    found, wanted = ([entry.name for entry in sorted(each.rglob("*"))] for each in (snapshots, quiet))
    mine, theirs = (_snapshot(each) for each in (snapshots, quiet))
    if ended.code != 0:
        tally.blame(f"{snapshots.name} ended with {ended.code}: {ended.said}")
    elif mine != theirs:
        tally.blame(f"{snapshots.name}: another snapshot than without faults: {mine} {theirs}")
    elif found != wanted:
        tally.blame(f"{snapshots.name}: left behind: {sorted({*found} - {*wanted})}")
    else:
        tally.recovered += faults


def _snapshot(folder: Path) -> list[str]:
    from pipeline.manifests import MANIFEST, read_manifest
    from pipeline.store import Store

    return [read_manifest(path / MANIFEST).digest for _, path in Store(folder).all()]


FAMILIES = {"ray": shared}
