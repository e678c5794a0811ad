"""The long run: `python -m tests.fuzz MINUTES [SEED]`. Inputs that fall are kept in runs/fuzz, with what was raised.

Every input is on the disk before it is read: of a process that is killed by one, it is the one that lies there.
"""

from __future__ import annotations

import collections
import faulthandler
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.fuzz import records, traces
from tests.fuzz.forged import DEEP, Forger, commands_for
from tests.fuzz.mutate import mutated, resealed
from tests.fuzz.runs import judge_commands, spoilt_run, whole_run

SECONDS = 60
"""Most time of one input."""
MEMORY = 4 << 30
"""Most memory of the process, beyond what it has once all is loaded."""
Case = Callable[[Random, Path], tuple[str, Callable[[], object]]]


def main(minutes: float, seed: int, kept: Path) -> int:
    """Read spoilt files until the time is over; returns how many kinds of faults there were."""
    cases = _cases(kept / "cache")
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_size() + MEMORY, hard))
    until, faults, done = time.monotonic() + 60 * minutes, collections.Counter[str](), collections.Counter[str]()
    work, longest = kept / "work", 0.0
    while time.monotonic() < until:
        draw = Random(seed)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        (kept / "seed").write_text(f"{seed}\n")
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        began = time.monotonic()
        name, judge = draw.choices([case for case, _ in cases], [weight for _, weight in cases])[0](draw, work)
        try:
            judge()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            kind = f"{name} {_kind(error)}"
            faults[kind] += 1
            if faults[kind] == 1:
                print(f"seed {seed}: {kind}: {str(error)[:300]}", flush=True)
                shutil.copytree(work, kept / "found" / f"{seed}", symlinks=True, dirs_exist_ok=True)
                (kept / "found" / f"{seed}.txt").write_text(f"{name}\n{traceback.format_exc()}")
        faulthandler.cancel_dump_traceback_later()
        longest = max(longest, time.monotonic() - began)
        done[name] += 1
        seed += 1
    told = ", ".join(f"{name} {count}" for name, count in sorted(done.items()))
    print(
        f"{done.total()} inputs in {minutes:g} minutes, the longest {longest:.1f} s: {told}\n"
        f"{len(faults)} kinds of faults"
    )
    return len(faults)


def _kind(error: Exception) -> str:
    """What tells one fault from another: where it was raised, or what did not hold."""
    if isinstance(error, AssertionError):
        return str(error)[-120:]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/tests/" not in frame.filename]
    return " ".join([type(error).__name__, *(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-1:])])


def _size() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _cases(cache: Path) -> list[tuple[Case, float]]:
    cache.mkdir(parents=True, exist_ok=True)
    records.CACHE.append(cache)
    assembler = traces.assembler_in(cache)
    whole = whole_run(cache)
    forger, commands = Forger(whole, cache / "own" / "recipe.toml", cache / "forged"), (*commands_for(whole), *DEEP)
    everything = traces.seeds("auto", further=True)
    own = {name: traces.seeds(name, further=True) or everything for name in traces.FORMATS}
    seeds: dict[str, list[bytes]] = {}
    for record in records.RECORDS:
        folder = cache / "seeds" / record.name.replace("/", "_")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        seeds[record.name] = record.seeds(folder)

    def spoilt_trace(draw: Random) -> tuple[str, bytes]:
        name = draw.choice(traces.FORMATS)
        data = mutated(draw.choice(own[name]), everything, draw)
        return name, traces.tables(data, draw) if draw.random() < 0.1 else data

    def one_trace(draw: Random, work: Path) -> tuple[str, Callable[[], object]]:
        name, data = spoilt_trace(draw)
        (work / "input").write_bytes(data)
        return f"traces:{name}", lambda: traces.judge(work / "input", name, work, assembler)

    def neighbours(draw: Random, work: Path) -> tuple[str, Callable[[], object]]:
        spoilt = [spoilt_trace(draw)[1] for _ in range(6)]
        return "ingest", lambda: traces.judge_neighbours(spoilt, work)

    def one_record(draw: Random, work: Path) -> tuple[str, Callable[[], object]]:
        record = draw.choice(records.RECORDS)
        data = mutated(draw.choice(seeds[record.name]), draw.choice(list(seeds.values())), draw)
        data = resealed(data, draw) if record.sealed else data
        return record.name, lambda: record.judge(data, work)

    def one_run(draw: Random, work: Path) -> tuple[str, Callable[[], object]]:
        folder, _ = spoilt_run(cache, work, draw)
        return "run folder", lambda: judge_commands(folder, cache, work)

    def made_up(draw: Random, work: Path) -> tuple[str, Callable[[], object]]:
        forgery = draw.choice(forger.forgeries)
        (work / "input").write_text(f"{forgery}\n")
        return "made up", lambda: forger.judge(forgery, draw.sample(commands, 3))

    return [(one_trace, 0.5), (one_record, 0.25), (neighbours, 0.05), (one_run, 0.05), (made_up, 0.15)]


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0, Path("runs/fuzz").resolve()) > 0)
