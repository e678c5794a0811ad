"""Run the command line and kill this process with SIGKILL at the n-th event, to see what a dead process leaves.

Events are the moments at which something reaches the disk or a stage gets further. Forked from a parent that has
imported everything already, one run of the tiny recipe takes a second or two.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.jobs import Job
from pipeline.partial import PartialArtifact
from pipeline.run import Runner
from stages.contract import Artifact

POINTS = [
    ("pipeline.partial", "PartialArtifact", "commit_shard"),
    ("pipeline.partial", "PartialArtifact", "progress"),
    ("pipeline.partial", "PartialArtifact", "telemetry"),
    ("pipeline.partial", "PartialArtifact", "_complete"),
    ("pipeline.partial", None, "_sync"),
    ("pipeline.runfile", None, "write_run"),
    ("pathlib", "Path", "replace"),
    ("pathlib", "Path", "unlink"),
]


class Counter:
    """Counts events job by job, and kills this process at one of them, noting in the log which stage that hit."""

    def __init__(self, log: Path, slots: list[str] | None = None, kill_at: int = 0) -> None:
        """Kill in the last of `slots`, the run's jobs up to there; without any, only count."""
        self.log, self.slots, self.kill_at = log, slots, kill_at
        self.slot, self.stage, self.key = "", "", ""
        self.seen: dict[str, int] = {}

    def enter(self, slot: str, stage: str) -> None:
        """A job's artifact is going to be made. Past the target there is nothing left to hit: die here, in between."""
        self.slot, self.stage = slot, stage
        if self.slots and slot not in self.slots:
            self.die("between")

    def event(self) -> None:
        self.seen[self.slot] = self.seen.get(self.slot, 0) + 1
        if self.slots and self.slot == self.slots[-1] and self.seen[self.slot] == self.kill_at:
            self.die(self.stage)

    def die(self, where: str) -> None:
        self.note("kill", where, self.slot, str(self.kill_at))
        os.kill(os.getpid(), signal.SIGKILL)

    def note(self, *words: str) -> None:
        with self.log.open("a") as file:
            file.write(" ".join(words) + "\n")


@contextmanager
def counting(counter: Counter) -> Iterator[None]:
    """Count an event before and after each point, and note every job begun and every shard committed."""
    undo: list[tuple[Any, str, Any]] = []
    make = Runner._make

    def entering(runner: Runner, job: Job, key: str) -> Artifact:
        counter.enter("/".join(job.slot), job.stage.NAME)
        return make(runner, job, key)

    def wrap(owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            if isinstance(arguments[0], PartialArtifact):
                counter.key = arguments[0]._final.name
            counter.event()
            result = original(*arguments, **options)
            if name == "replace" and arguments[1].parent.name == "rollouts":
                counter.note("commit", counter.key, arguments[1].name)
            counter.event()
            return result

        undo.append((owner, name, original))
        setattr(owner, name, wrapped)

    for module, owner, name in POINTS:
        __import__(module)
        target = sys.modules[module]
        wrap(getattr(target, owner) if owner else target, name)
    undo.append((Runner, "_make", make))
    Runner._make = entering
    try:
        yield
    finally:
        for owner, name, original in undo:
            setattr(owner, name, original)


def in_child(work: Callable[[], int]) -> int:
    """Do some work in a forked child. Returns its exit code, negative for the signal that killed it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def preload(work: Callable[[], int]) -> int:
    """Do some work in a forked child, then import here what it imported, so that no later child has to.

    Libraries import most of themselves at first use only; doing the work here instead would leave threads behind that
    a fork does not survive.
    """
    with tempfile.NamedTemporaryFile() as file:
        names = Path(file.name)

        def telling() -> int:
            code = work()
            names.write_text("\n".join(sys.modules))
            return code

        code = in_child(telling)
        for name in names.read_text().split("\n"):
            with contextlib.suppress(ImportError):  # some modules are made by others, under a name that has no file
                importlib.import_module(name)
    return code


def positions(events: int, kills: int, draw: random.Random) -> list[int]:
    """At which of a job's events to kill it. A stage that resumes has ever fewer left, one that starts over has all:
    half the kills come early, and walk through the first kind, half are spread evenly, and reach the end of the second.
    """
    early = [draw.randint(1, max(1, 2 * events // kills)) for _ in range(kills // 2)]
    return early + [1 + (events - 1) * number // (kills - len(early)) for number in range(kills - len(early))]


def main(recipe: str, folder: str, log: str, kills: int) -> None:
    """Count the events of every job in a throw-away run, then kill another run `kills` times within each job."""
    from pipeline.cli import main as mmgrpo

    def attempt(run: Path, counter: Counter, fork: Callable[[Callable[[], int]], int] = in_child) -> int:
        def work() -> int:
            with counting(counter):
                code = mmgrpo(["run", recipe, "--run-dir", str(run), "--exec", "progress=off"])
            for slot, events in counter.seen.items():
                counter.note("events", slot, str(events))
            return code

        return fork(work)

    counted = Path(folder).with_name("counted")
    assert attempt(counted, Counter(counted.with_suffix(".log")), preload) == 0
    lines = [line.split() for line in counted.with_suffix(".log").read_text().splitlines()]
    jobs = [(words[1], int(words[2])) for words in lines if words[0] == "events" and "/" in words[1]]
    slots = [slot for slot, _ in jobs]
    draw = random.Random(0)
    for number, (slot, events) in enumerate(jobs, start=1):
        for kill_at in positions(events, min(kills, 2) if slot.startswith("setup/") else kills, draw):
            code = attempt(Path(folder), Counter(Path(log), slots[:number], kill_at))
            assert code == -signal.SIGKILL or (code == 0 and slot == slots[-1]), f"a restart ended with {code}"
    assert attempt(Path(folder), Counter(Path(log))) == 0


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
