"""SIGKILL, SIGTERM and SIGSTOP at random moments of every stage."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

from tests.chaos.harness import Bench, Ended, Tally
from tests.test_e2e.faults import Counter, counting

STAGES = ("rollout", "group", "logprobs", "train", "evaluate", "drift")
NEAR, FAR = 16, 150
"""Most events that a process is let live for: within a stage that is drawn, and in whatever it makes first. One example
takes some 40 to be committed."""
ENDS = {"kill": {-signal.SIGKILL}, "term": {128 + signal.SIGTERM, -signal.SIGTERM}}


class Trigger(Counter):
    """Does something to this process at one event of what it makes."""

    def __init__(self, log: Path, at: int, act: Callable[[], None], within: str | None = None) -> None:
        """The `at`-th event counts, of any stage or of those `within` one."""
        super().__init__(log)
        self.at, self.act, self.within, self.count = at, act, within, 0

    def enter(self, slot: str, stage: str) -> None:
        """A job is going to be made."""
        self.slot, self.stage = slot, stage

    def event(self) -> None:
        """Something reaches the disk, or a stage gets further."""
        self.count += self.within in (None, self.stage)
        if self.count == self.at and self.within in (None, self.stage):
            self.note("hit", self.stage or "outside")
            self.act()


def triggered(log: Path, draw: random.Random, act: Callable[[], None]) -> Callable[[], None]:
    """What a child is disturbed by, at an event that is drawn: it lasts as long as the child."""
    within = draw.choice(STAGES) if draw.random() < 0.6 else None
    trigger = Trigger(log, draw.randint(1, NEAR if within else FAR), act, within)
    counted = counting(trigger)  # one that is collected stops counting

    def disturb() -> None:
        counted.__enter__()

    return disturb


def hits(log: Path) -> list[str]:
    """The stages that were hit, in order."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.split()[1] for line in lines if line.startswith("hit ")]


def send(number: signal.Signals) -> Callable[[], None]:
    """Send this process a signal."""
    return lambda: os.kill(os.getpid(), number)


def chain(bench: Bench, tally: Tally, faults: int, one: Callable[[Path], tuple[Ended, str | None]]) -> None:
    """One disturbed attempt after another on one run until it is done; then the next run, until there are enough.

    `one` makes an attempt and says what was hit; None for nothing.
    """
    number = idle = 0
    while tally.injected < faults and not tally.wrong:
        number += 1
        run = bench.fresh(f"{tally.family}-{number}")
        before = tally.injected
        while tally.injected < faults and not tally.wrong:
            ended, where = one(run)
            if where is not None:
                tally.hit(where)
            if ended.code == 0:
                break
        bench.settle(run, tally, tally.injected - before)
        idle = 0 if tally.injected > before else idle + 1
        if idle > 4:
            tally.blame("one run after another met no fault")


def by_signal(way: str, number: signal.Signals) -> Callable[[Bench, int, random.Random], Tally]:
    """The family of a signal that ends a process."""

    def family(bench: Bench, faults: int, draw: random.Random) -> Tally:
        tally, log = Tally(way), bench.folder / f"{way}.hits"
        log.unlink(missing_ok=True)

        def one(run: Path) -> tuple[Ended, str | None]:
            before = len(hits(log))
            ended = bench.attempt(run, triggered(log, draw, send(number)))
            new = hits(log)[before:]
            if ended.code not in ENDS[way] and not (ended.code == 0 and not new):
                tally.blame(f"{way} at {new}: ended with {ended.code}: {ended.said}")
            return ended, new[0] if new else None

        chain(bench, tally, faults, one)
        return tally

    return family


def stopped(bench: Bench, faults: int, draw: random.Random) -> Tally:
    """SIGSTOP: while a process is stopped, another is told that the run is in use; then it is killed, or goes on."""
    tally, log = Tally("stop"), bench.folder / "stop.hits"
    log.unlink(missing_ok=True)

    def one(run: Path) -> tuple[Ended, str | None]:
        before = len(hits(log))
        child = bench.start(bench.command("run", run), triggered(log, draw, send(signal.SIGSTOP)))
        _, status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return Ended(os.waitstatus_to_exitcode(status), ""), None
        other = bench.wait(bench.start(bench.command("next", run), None, "other"), "other")
        if other.code == 75 and other.clear:
            tally.refused += 1
        else:
            tally.blame(f"beside a stopped process another ended with {other.code}: {other.said}")
        os.kill(child, signal.SIGCONT if (ends := draw.random() < 0.1) else signal.SIGKILL)
        ended = bench.wait(child)
        if ended.code != (0 if ends else -signal.SIGKILL):
            tally.blame(f"a stopped process ended with {ended.code}: {ended.said}")
        return ended, hits(log)[before:][0]

    chain(bench, tally, faults, one)
    return tally


FAMILIES = {
    "kill": by_signal("kill", signal.SIGKILL),
    "term": by_signal("term", signal.SIGTERM),
    "stop": stopped,
}
