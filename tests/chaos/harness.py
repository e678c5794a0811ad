"""What every family of faults uses: a small run in forked children, the quiet run beside it, and what must be true.

The parent has imported everything and starts no thread, so that a child is there at once. What samples is a script
that answers by the request's seed: two runs are then equal byte for byte, whatever was done to one of them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import string
import sys
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from stages.engines.interface import Request
from stages.engines.scripted import ScriptedEngine
from tests.chaos.soak_ends import ROOT, counted, digests, left_over
from tests.test_e2e.faults import preload

T = TypeVar("T")
SMALL = (
    "run.iterations=2",
    "rollout.examples=4",
    "rollout.rollouts=4",
    "evaluate.samples=1",
    "evaluate.bootstrap=200",
)
"""What makes data/tiny a matter of seconds, with every stage in it."""
LONGEST_S = 900.0
HUNG = 1000
"""The exit code of a child that did not end."""


class Script(ScriptedEngine):
    """Answers of a few characters, drawn by the request's seed; some of them do not parse."""

    def expect(self, digests: Collection[str]) -> None:
        """Every adapter is as good as another."""


def answer(request: Request, prompt: str) -> str:
    """What the script says."""
    draw = random.Random(f"{request.seed}/{len(prompt)}")
    return "".join(draw.choices(string.ascii_letters + string.digits + " .", k=draw.randint(3, 9)))


@dataclass(frozen=True)
class Ended:
    """How a child ended, and what it said."""

    code: int
    said: str

    @property
    def clear(self) -> bool:
        """Whether it refused in words: an exit code of ours and no traceback."""
        return self.code in {2, 3, 4, 75} and "Traceback" not in self.said and "mmgrpo: " in self.said


@dataclass
class Tally:
    """What came of the faults of a family."""

    family: str
    injected: int = 0
    recovered: int = 0
    refused: int = 0
    """Faults at which a command stopped with a message that says what and where."""
    lost_rows: int = 0
    doubled_rows: int = 0
    where: dict[str, int] = field(default_factory=dict)
    """Faults by stage or kind."""
    wrong: list[str] = field(default_factory=list)
    """Whatever was not as it must be."""

    def hit(self, where: str, count: int = 1) -> None:
        """Count a fault."""
        self.injected += count
        self.where[where] = self.where.get(where, 0) + count

    def blame(self, what: str) -> None:
        """Note what is wrong."""
        self.wrong.append(what[-1500:])


@dataclass
class Bench:
    """A folder with the quiet run, and the means to make disturbed ones beside it."""

    folder: Path
    recipe: Path = ROOT / "data" / "tiny" / "recipe.toml"
    settings: tuple[str, ...] = SMALL

    def command(self, name: str, run: Path | str) -> list[str]:
        """The command line of a command on a run folder."""
        options = [option for setting in self.settings for option in ("--set", setting)]
        return [name, str(self.recipe), "--run-dir", str(run), *options, "--exec", "progress=off"]

    @property
    def quiet(self) -> Path:
        """The run that nobody disturbed."""
        return self.folder / "quiet"

    def prepare(self) -> None:
        """Import everything, and make the quiet run."""
        shutil.rmtree(self.quiet, ignore_errors=True)
        code = preload(lambda: self._work(self.command("run", self.quiet), None, self.folder / "quiet.log"))
        assert code == 0, (self.folder / "quiet.log").read_text()

    def fresh(self, name: str) -> Path:
        """A run folder that is not there yet."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    def copied(self, name: str) -> Path:
        """A copy of the quiet run."""
        return Path(shutil.copytree(self.quiet, self.fresh(name)))

    def start(self, arguments: list[str], disturb: Callable[[], Any] | None = None, name: str = "child") -> int:
        """Fork a child that types a command. `disturb` is called in it before. Returns its process id."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            code = 1
            try:
                code = self._work(arguments, disturb, self.folder / f"{name}.log")
            finally:
                os._exit(code)
        return child

    def wait(self, child: int, name: str = "child") -> Ended:
        """The end of a child."""
        until = time.monotonic() + LONGEST_S
        while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return Ended(HUNG, f"hung: {(self.folder / f'{name}.log').read_text(errors='replace')}")
            time.sleep(0.01)
        return Ended(os.waitstatus_to_exitcode(found[1]), (self.folder / f"{name}.log").read_text(errors="replace"))

    def attempt(self, run: Path, disturb: Callable[[], Any] | None = None, command: str = "run") -> Ended:
        """One command in a child."""
        return self.wait(self.start(self.command(command, run), disturb))

    def ask(self, work: Callable[[], T]) -> T:
        """What some work gives, done in a child: libraries start threads, which no fork survives."""
        file = self.folder / "asked.json"
        file.unlink(missing_ok=True)

        def asked() -> None:
            file.write_text(json.dumps(work()))
            os._exit(0)

        ended = self.wait(self.start([], asked, "asked"), "asked")
        assert ended.code == 0, ended.said
        found: T = json.loads(file.read_text())
        return found

    def settle(self, run: Path, tally: Tally, faults: int, *, to: Path | None = None) -> None:
        """Give the same command once more, undisturbed: it ends well, and the run equals the quiet one."""
        ended = self.attempt(run)
        if ended.code != 0:
            tally.blame(f"{run.name}: the rerun ended with {ended.code}: {ended.said}")
            return
        mine, theirs = digests(run), digests(to or self.quiet)
        rows = self.ask(lambda: counted(run))
        left = {name: count for name, count in left_over(run).items() if count}
        tally.lost_rows += rows["lost_rows"]
        tally.doubled_rows += rows["doubled_rows"]
        if mine != theirs:
            differing = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
            tally.blame(f"{run.name}: not what the quiet run has: {differing}")
        elif left:
            tally.blame(f"{run.name}: left behind: {left}")
        elif any(rows.values()):
            tally.blame(f"{run.name}: {rows}")
        else:
            tally.recovered += faults
            shutil.rmtree(run)

    def _work(self, arguments: list[str], disturb: Callable[[], Any] | None, log: Path) -> int:
        """In the child: the script in place of the engine, all words into the log, and the command."""
        from pipeline.cli import main
        from stages.engines import factory

        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        if factory.__dict__["_make"].__module__ == factory.__name__:
            factory._make = lambda base, model, _: Script(base, answer, context=model.context)
        try:
            if disturb is not None:
                disturb()
            return main(arguments)
        except SystemExit as error:
            return int(error.code or 0)
        except BaseException:  # noqa: BLE001 - whatever it is, the log has it
            traceback.print_exc()
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
