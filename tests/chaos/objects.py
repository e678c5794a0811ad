"""A run at an S3 address: machines that die in the middle of it, and a store that answers 503 for a while."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

from pipeline.remote.lease import VARIABLE
from stages.engines.files import cache_folder
from tests.chaos.harness import Bench, Ended, Tally
from tests.chaos.signals import hits, send, triggered
from tests.chaos.soak_ends import counted, digests
from tests.test_pipeline.remote_kit import CREDENTIALS, S3Server

LEASE_S = 3.0
"""How long a dead machine holds what it was at."""


def machine(bench: Bench, number: int) -> Path:
    """The cache folder of a machine, which has the base model already."""
    folder = bench.folder / f"machine-{number}"
    for path in cache_folder(None).glob("tiny-random-0*"):
        if path.is_dir() and not (folder / path.name).exists():
            shutil.copytree(path, folder / path.name)
    return folder


def objects(bench: Bench, faults: int, draw: random.Random) -> Tally:
    """Whoever goes on, on whichever machine, ends with what one quiet machine has on its disk."""
    tally, log, server = Tally("object store"), bench.folder / "objects.hits", S3Server()
    kept = {name: os.environ.get(name) for name in (*CREDENTIALS, "AWS_ENDPOINT_URL", "MMGRPO_CACHE", VARIABLE)}
    os.environ.update({**CREDENTIALS, "AWS_ENDPOINT_URL": server.url, VARIABLE: str(LEASE_S)})
    try:
        number = 0
        while tally.injected < faults and not tally.wrong:
            number += 1
            address = f"{bench.ask(lambda name=f'bucket-{number}': server.bucket(name))}/run"  # type: ignore[misc]
            before = tally.injected
            while tally.injected < faults:
                os.environ["MMGRPO_CACHE"] = str(machine(bench, draw.randint(1, 2)))
                if disturbed(bench, tally, draw, address, log, server).code == 0:
                    break
            settle(bench, tally, address, tally.injected - before)
    finally:
        server.close()
        for name, value in kept.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    return tally


def disturbed(bench: Bench, tally: Tally, draw: random.Random, address: str, log: Path, server: S3Server) -> Ended:
    """One attempt: its machine is killed, or the store fails for so many requests."""
    log.unlink(missing_ok=True)
    away = draw.random() < 0.4
    count = draw.randint(1, 30)
    act = (lambda: server.ask(f"/fail/{count}")) if away else send(signal.SIGKILL)
    disturb = triggered(log, draw, act)
    ended = bench.wait(bench.start(bench.command("run", address), disturb))
    for where in hits(log):
        tally.hit(f"{'503 for a while' if away else 'killed'}: {where}")
    tally.refused += ended.clear
    if ended.code == -signal.SIGKILL:
        time.sleep(LEASE_S)
    elif ended.code != 0 and not (away and ended.clear and ended.code == 4):
        tally.blame(f"ended with {ended.code}: {ended.said}")
    server.ask("/fail/0")
    return ended


def settle(bench: Bench, tally: Tally, address: str, faults: int) -> None:
    """A machine that was never at it ends the run, and has the artifacts of the quiet one."""
    os.environ["MMGRPO_CACHE"] = str(machine(bench, 3))
    for command in (bench.command("run", address), ["verify", address]):
        ended = bench.wait(bench.start(command))
        if ended.code != 0:
            return tally.blame(f"{command[0]} ended with {ended.code}: {ended.said}")
    (mirror,) = [path.parent for path in machine(bench, 3).rglob("run.json")]
    rows = bench.ask(lambda: counted(mirror))
    tally.lost_rows += rows["lost_rows"]
    tally.doubled_rows += rows["doubled_rows"]
    if digests(mirror) != digests(bench.quiet) or any(rows.values()):
        tally.blame(f"not what the quiet run has: {rows}")
    else:
        tally.recovered += faults
    for number in (1, 2, 3):
        shutil.rmtree(machine(bench, number))
    return None


FAMILIES = {"object store": objects}
