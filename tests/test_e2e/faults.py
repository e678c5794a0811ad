"""Run the command line and kill this process with SIGKILL at the n-th event, to see what a dead process leaves.

Events are the moments at which something reaches the disk or a stage gets further. Forked from a parent that has
imported everything already, one run of the tiny recipe takes a second or two.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.store import PartialArtifact

POINTS = [
    ("pipeline.store", "PartialArtifact", "commit_shard"),
    ("pipeline.store", "PartialArtifact", "progress"),
    ("pipeline.store", "PartialArtifact", "telemetry"),
    ("pipeline.store", "PartialArtifact", "_complete"),
    ("pipeline.store", None, "_sync"),
    ("pipeline.runfile", None, "write_run"),
    ("pathlib", "Path", "replace"),
    ("pathlib", "Path", "unlink"),
]


class Counter:
    """Counts events, and kills this process at one of them, noting in the log which stage that hit."""

    def __init__(self, kill_at: int | None, log: Path) -> None:
        self.kill_at, self.log, self.seen, self.stage, self.key = kill_at, log, 0, "start", ""

    def event(self) -> None:
        self.seen += 1
        if self.seen == self.kill_at:
            self.note("kill", self.stage)
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, *words: str) -> None:
        with self.log.open("a") as file:
            file.write(" ".join(words) + "\n")


@contextmanager
def counting(counter: Counter) -> Iterator[None]:
    """Count an event before and after each point, and note every committed shard."""
    undo: list[tuple[Any, str, Any]] = []

    def wrap(owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            if isinstance(arguments[0], PartialArtifact):
                counter.stage, counter.key = arguments[0]._final.parent.name, arguments[0]._final.name
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


def main(recipe: str, folder: str, log: str, kills: int) -> None:
    """Count the events of a whole run in a throw-away folder, then kill a run at `kills` points spread over them."""
    import dspy  # noqa: F401 - imported once here, not in every child
    import trl  # noqa: F401

    import stages.train  # noqa: F401
    from pipeline.cli import main as mmgrpo

    def attempt(run: Path, kill_at: int | None, log: Path) -> int:
        def work() -> int:
            counter = Counter(kill_at, log)
            with counting(counter):
                code = mmgrpo(["run", recipe, "--run-dir", str(run), "--exec", "progress=off"])
            counter.note("events", str(counter.seen))
            return code

        return in_child(work)

    counted = Path(folder).with_name("counted")
    assert attempt(counted, None, counted.with_suffix(".log")) == 0
    events = int(counted.with_suffix(".log").read_text().split()[-1])
    # Restarts skip what is done, so a kill after about a fraction of all events each time walks through the run.
    draw = random.Random(0)
    killed = 0
    while killed < kills:
        code = attempt(Path(folder), draw.randint(2, 3 * events // kills), Path(log))
        if code == 0:
            break
        assert code == -signal.SIGKILL, f"a restart ended with {code}"
        killed += 1
    assert attempt(Path(folder), None, Path(log)) == 0
    print(f"killed {killed} times in {events} events")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
