"""Several schedulers at one run, and holders of locks that are dead."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

from pipeline.commands.next import NOTHING_LEFT
from pipeline.locks import hold
from schemas.errors import LockedError
from tests.chaos.harness import Bench, Ended, Tally
from tests.chaos.signals import chain, hits, send, triggered


def duel(bench: Bench, faults: int, draw: random.Random) -> Tally:
    """Two start the same iteration at once, and often the one that has it is killed: the other never spoils it."""
    tally, log = Tally("two schedulers"), bench.folder / "duel.hits"

    def one(run: Path) -> tuple[Ended, str | None]:
        log.unlink(missing_ok=True)
        disturb = triggered(log, draw, send(signal.SIGKILL)) if draw.random() < 0.8 else None
        names = ("first", "second")
        children = [bench.start(bench.command("next", run), disturb, name) for name in names]
        ended = [bench.wait(child, name) for child, name in zip(children, names, strict=True)]
        tally.refused += sum(each.code == 75 and each.clear for each in ended)
        allowed = {0, NOTHING_LEFT, 75} | ({-signal.SIGKILL} if hits(log) else set())
        for each in ended:
            if each.code not in allowed or (each.code == 75 and not each.clear):
                tally.blame(f"of two one ended with {each.code}: {each.said}")
        done = any(each.code == NOTHING_LEFT for each in ended)
        return Ended(0 if done else 1, ""), "at once"

    chain(bench, tally, faults, one)
    return tally


def holder(lock: Path) -> int:
    """A child that holds a lock for ever. Returns once it does."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with hold(lock, "lock"):
            os.write(writing, b"x")
            signal.pause()
        os._exit(1)
    os.close(writing)
    os.read(reading, 1)
    os.close(reading)
    return child


def dead(bench: Bench, faults: int, draw: random.Random) -> Tally:
    """Whoever holds a lock is killed, or its file says nonsense: who comes next has it at once."""
    tally, run = Tally("dead holder"), bench.copied("dead")
    locks = [*sorted(run.rglob(".*.lock")), run / ".lock"]
    for number in range(faults):
        lock = draw.choice(locks)
        child = holder(lock)
        try:
            with hold(lock, "lock"):
                tally.blame(f"{lock}: two hold it")
        except LockedError as error:
            tally.refused += str(child) in str(error)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if draw.random() < 0.3:
            lock.write_bytes(draw.randbytes(draw.randint(0, 40)))
        try:
            with hold(lock, "lock"):
                pass
        except LockedError as error:
            tally.blame(f"after its holder's death: {error}")
        tally.hit("run" if lock.parent == run else lock.parent.name)
        if number == faults - 1:
            bench.settle(run, tally, faults)
    return tally


FAMILIES = {"two schedulers": duel, "dead holder": dead}
