"""What runs in the processes of a cluster. Nothing heavy is imported before their settings are known."""

from __future__ import annotations

import os
import platform
import resource
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.on_ray.named import OURS, Named, found
from pipeline.provenance import package_versions
from schemas.canonical import digest, digest_file
from schemas.errors import DataError, LockedError, MmgrpoError, RecipeError, StageError

KINDS: Mapping[str, type[MmgrpoError]] = {
    kind.__name__: kind for kind in (RecipeError, DataError, StageError, LockedError)
}


@dataclass(frozen=True)
class Setting:
    """What a process is given before it does anything."""

    build: Mapping[str, str]
    """See `build`."""
    env: Mapping[str, str] = field(repr=False)
    """Environment variables, keys of endpoints among them."""
    folder: str
    """Where the command was typed: programs may open files relative to it."""
    packages: tuple[str, ...] = OURS
    """Those whose functions may be called."""


@dataclass(frozen=True)
class Parcel:
    """Something that lies in Ray's store until it is opened.

    What a function is called with comes out of the store before it; this does not. To take it out imports the modules
    of all that is in it, some of which settle at once how many threads they compute with.
    """

    reference: Any

    def open(self) -> Any:
        """What is in it."""
        import ray

        return ray.get(self.reference)


@dataclass(frozen=True)
class Refused:
    """An error on its way: it is sent in words, since not every exception can be sent."""

    kind: str
    text: str

    def error(self) -> MmgrpoError:
        """As it is raised where the command was typed."""
        return KINDS[self.kind](self.text)


@dataclass(frozen=True)
class Said:
    """A result, or an error; and the processor time that its process has taken so far."""

    name: str = ""
    result: Any = None
    refused: Refused | None = None
    core_seconds: float = 0.0


@dataclass(frozen=True)
class Ready:
    """A process that can begin."""

    node: str
    leaves: Path | None
    """Folder that its state writes into, if any."""


@cache
def build() -> Mapping[str, str]:
    """What must be the same on all machines: Python, the packages that results depend on, and our own code."""
    root = Path(__file__).resolve().parents[2]
    own = {
        path.relative_to(root).as_posix(): digest_file(path)
        for package in ("pipeline", "schemas", "stages")
        for path in sorted((root / package).rglob("*.py"))
    }
    return {"python": platform.python_version(), **package_versions(), "the code of mmgrpo": digest(own)[:12]}


def enter(setting: Setting) -> None:
    """Take on the settings of the command.

    Raises:
        StageError: where this machine has other versions.
    """
    os.environ.update(setting.env)
    here = build()
    names = sorted(here.keys() | setting.build.keys())
    other = [name for name in names if here.get(name) != setting.build.get(name)]
    if other:
        told = "; ".join(f"{name} {here.get(name, 'missing')} (expected {setting.build.get(name)})" for name in other)
        raise StageError(
            f"a worker on {socket.gethostname()} has other versions than this machine: {told}. Results would depend on "
            "who makes them: install the same on all machines (`pip install -c constraints.txt`)"
        )
    if Path(setting.folder).is_dir():
        os.chdir(setting.folder)


def refusal(error: BaseException) -> Refused:
    """An error in words: one for users as it is, any other with its traceback."""
    for name, kind in KINDS.items():
        if isinstance(error, kind):
            return Refused(name, str(error))
    text = "".join(traceback.format_exception(error)).rstrip()
    return Refused("StageError", f"a worker on {socket.gethostname()} failed:\n{text}")


def core_seconds() -> float:
    """Processor time of this process and of those that it started and that ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


class Actor:
    """A process that keeps a state, such as a program with its engine."""

    def __init__(self, setting: Setting) -> None:
        self._refused: Refused | None = None
        self._held: tuple[int, Any] | None = None
        self._packages = setting.packages
        try:
            enter(setting)
        except MmgrpoError as error:
            self._refused = refusal(error)

    def begin(self, number: int, make: Parcel) -> Said:
        """Make the state of a number, unless it is the one at hand. The parcel holds a `Named`."""
        try:
            if self._refused is None and (self._held is None or self._held[0] != number):
                self._held = None
                self._held = number, found(make.open(), self._packages)()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
            return Said(refused=refusal(error))
        if self._refused is not None or self._held is None:
            return Said(refused=self._refused)
        leaves = getattr(self._held[1], "leaves", None)
        return Said(result=Ready(socket.gethostname(), leaves), core_seconds=core_seconds())

    def work(self, step: Named, tasks: Mapping[str, Any]) -> Iterator[Said]:
        """Do some tasks, and say of each what came of it."""
        assert self._held is not None
        try:
            for name, result in found(step, self._packages)(self._held[1], tasks):
                yield Said(name, result, core_seconds=core_seconds())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
            yield Said(refused=refusal(error))

    def leave(self) -> float:
        """Let go of the state and of processes that it holds; returns the processor time of all."""
        self._held = None
        if "stages.engines.factory" in sys.modules:
            sys.modules["stages.engines.factory"].release()
        return core_seconds()


def do(setting: Setting, step: Parcel, task: Parcel) -> Said:
    """Do one task that needs no state. The step's parcel holds a `Named`."""
    before = core_seconds()
    try:
        enter(setting)
        result = found(step.open(), setting.packages)(task.open())
    except BaseException as error:  # noqa: BLE001 - as above
        return Said(refused=refusal(error))
    return Said(result=result, core_seconds=core_seconds() - before)
