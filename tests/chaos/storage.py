"""Storage that is full, read-only, slow, or fails now and then; and a clock that jumps."""

from __future__ import annotations

import datetime as dates
import errno
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.commands.next import NOTHING_LEFT
from tests.chaos.harness import Bench, Ended, Tally
from tests.chaos.signals import chain, hits, send, triggered

ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ESTALE,
    errno.ETIMEDOUT,
)
CALLS = ((os, "fsync"), (os, "link"), (os, "open"), (pathlib.Path, "replace"), (pathlib.Path, "mkdir"))
"""What a run writes with, beside the libraries that write tables."""
YEARS_S = 10 * 365 * 86400.0


def failing_at(run: Path, log: Path, at: int, wrong: int | float) -> Callable[[], None]:
    """One of the calls of CALLS below the run folder, the `at`-th, fails with an error, or takes so many seconds."""
    count = 0

    def below(first: Any) -> bool:
        name = str(Path(f"/proc/self/fd/{first}").readlink()) if isinstance(first, int) else str(first)
        return name.startswith(str(run))

    def wrap(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            if below(arguments[0]):
                count += 1
                if count == at:
                    with log.open("a") as file:
                        file.write(f"hit {errno.errorcode[wrong] if isinstance(wrong, int) else 'slow'}\n")
                    if isinstance(wrong, int):
                        raise OSError(wrong, os.strerror(wrong), str(run))
                    time.sleep(wrong)
            return original(*arguments, **options)

        setattr(owner, name, wrapped)

    def disturb() -> None:
        for owner, name in CALLS:
            wrap(owner, name)

    return disturb


def failing(bench: Bench, faults: int, draw: random.Random) -> Tally:
    """A call fails, or is slow: the command says so, or does without; nothing finished is harmed."""
    tally, log = Tally("failing storage"), bench.folder / "failing.hits"
    log.unlink(missing_ok=True)

    def one(run: Path) -> tuple[Ended, str | None]:
        before = len(hits(log))
        wrong: int | float = draw.uniform(0.1, 1.0) if draw.random() < 0.15 else draw.choice(ERRORS)
        ended = bench.attempt(run, failing_at(run, log, draw.randint(1, 60), wrong))
        new = hits(log)[before:]
        tally.refused += ended.clear
        if ended.code != 0 and not (ended.clear and ended.code == 4 and new):
            tally.blame(f"{new}: ended with {ended.code}: {ended.said}")
        return ended, new[0] if new else None

    chain(bench, tally, faults, one)
    return tally


def mounted(*arguments: str) -> None:
    """Mount, unmount or remount."""
    subprocess.run(list(arguments), check=True, capture_output=True)


def on_small_disk(
    name: str, one: Callable[[Bench, Tally, random.Random, Path, Path], tuple[Ended, str | None]]
) -> Callable[[Bench, int, random.Random], Tally]:
    """A family on a file system of its own, in memory: it takes root to mount one."""

    def family(bench: Bench, faults: int, draw: random.Random) -> Tally:
        tally, disk = Tally(name), bench.folder / "disk"
        if os.geteuid() != 0:
            tally.where["left out: not root"] = 1
            return tally
        disk.mkdir(exist_ok=True)
        mounted("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk))
        inner = Bench(bench.folder, bench.recipe, bench.settings)
        try:
            while tally.injected < faults and not tally.wrong:
                run, before = disk / f"run-{tally.injected}", tally.injected
                while tally.injected < faults and not tally.wrong:
                    ended, where = one(inner, tally, draw, disk, run)
                    tally.hit(where) if where else None
                    mounted("mount", "-o", "remount,rw,size=64m", str(disk))
                    if ended.code == 0:
                        break
                    if not (ended.clear and ended.code == 4):
                        tally.blame(f"{where}: ended with {ended.code}: {ended.said}")
                    tally.refused += ended.clear
                bench.settle(run, tally, tally.injected - before)
        finally:
            mounted("umount", str(disk))
        return tally

    return family


def full(bench: Bench, tally: Tally, draw: random.Random, disk: Path, run: Path) -> tuple[Ended, str | None]:
    """So many bytes are left, and no more."""
    found = os.statvfs(disk)
    used = (found.f_blocks - found.f_bfree) * found.f_bsize
    left = int(2 ** draw.uniform(12, 17))
    mounted("mount", "-o", f"remount,size={used + left}", str(disk))
    ended = bench.attempt(run)
    return ended, None if ended.code == 0 else f"{left // 1024} KiB left"


def read_only(bench: Bench, tally: Tally, draw: random.Random, disk: Path, run: Path) -> tuple[Ended, str | None]:
    """A process dies, and before the next begins the file system is read-only. (Linux makes none so that is in use.)"""
    log = bench.folder / "read-only.hits"
    log.unlink(missing_ok=True)
    if draw.random() < 0.8:
        bench.attempt(run, triggered(log, draw, send(signal.SIGKILL)))
    mounted("mount", "-o", "remount,ro", str(disk))
    return bench.attempt(run), f"after {hits(log)[0] if hits(log) else 'nothing'}"


def jumping(log: Path, draw: random.Random) -> Callable[[], None]:
    """Every few looks at the clock it jumps by up to ten years, either way; the log has a line a jump."""
    offset, left = 0.0, 1
    real_time, real = time.time, dates.datetime

    def now() -> float:
        nonlocal offset, left
        left -= 1
        if left == 0:
            offset, left = draw.uniform(-YEARS_S, YEARS_S), draw.randint(1, 6)
            with log.open("a") as file:
                file.write("hit jump\n")
        return real_time() + offset

    class Jumping(real):  # type: ignore[misc, valid-type]
        @classmethod
        def now(cls, tz: dates.tzinfo | None = None) -> dates.datetime:
            return real.fromtimestamp(now(), tz)

    def disturb() -> None:
        time.time = now
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in {"pipeline", "stages", "schemas"} and getattr(module, "datetime", None) is real:
                module.datetime = Jumping  # type: ignore[attr-defined]

    return disturb


def clock(bench: Bench, faults: int, draw: random.Random) -> Tally:
    """The clock jumps, and files are as old or as new as can be: nothing of it is in a result."""
    tally, log = Tally("clock"), bench.folder / "clock.hits"
    log.unlink(missing_ok=True)
    number = 0
    while tally.injected < faults:
        run, before = bench.fresh(f"clock-{number}"), tally.injected
        ended = Ended(0, "")
        while ended.code == 0:
            ended = bench.attempt(run, jumping(log, draw), "next")
            for path in run.rglob("*"):
                os.utime(path, (when := draw.uniform(0, 2 * 10**9), when))
        if ended.code != NOTHING_LEFT:
            tally.blame(f"ended with {ended.code}: {ended.said}")
        new = len(hits(log)) - before
        tally.hit("jump", new)
        bench.settle(run, tally, new)
        number += 1
        if not new:
            tally.blame("the clock was never looked at")
            break
    return tally


FAMILIES = {
    "full disk": on_small_disk("full disk", full),
    "read-only": on_small_disk("read-only", read_only),
    "failing storage": failing,
    "clock": clock,
}
