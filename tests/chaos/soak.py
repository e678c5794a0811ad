"""An hour of `mmgrpo next`, one real process after another, most of them killed at a random moment.

`python -m tests.chaos.soak FOLDER --minutes 60 --seed 0` goes on where it was stopped (`FOLDER/soak.jsonl` has a line
a process), ends with one quiet pass and `verify --deep`, and compares what was made with what a quiet run makes of the
same sampled data. The last line it prints, and `FOLDER/soak.json`, hold the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.runfile import read_run
from pipeline.store import Store
from tests.chaos.soak_ends import compare, left_over

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = ("run.iterations=100000", "rollout.examples=4", "rollout.rollouts=4", "evaluate.samples=1")
"""What makes an iteration of data/tiny short, and the run long."""
OPTIONS = [option for setting in SMALL for option in ("--set", setting)] + ["--exec", "progress=plain"]
WAYS = {"kill": 9, "term": 3, "stop": 2, "stop, kill": 2, "two": 2, "none": 2}
"""How often each thing is done to a process: signals, stopped for a while, a second scheduler, left alone."""
EXPECTED = {"kill": {-9, 0}, "term": {-15, 143, 0}, "stop": {0}, "stop, kill": {-9, 0}, "two": {0, 75}, "none": {0}}
LONGEST_S = 900.0


@dataclass(frozen=True)
class Plan:
    """What happens to one process, and when: so many stages are done, and then so many seconds are over."""

    way: str
    stages: int
    delay_s: float
    pause_s: float

    @classmethod
    def drawn(cls, seed: int, number: int) -> Plan:
        """The plan of the process of this number."""
        draw = random.Random(f"{seed}/{number}")
        way = draw.choices(list(WAYS), list(WAYS.values()))[0]
        stages = draw.randint(0, 6)
        return cls(way, stages, draw.uniform(0, 4 if stages else 40), draw.uniform(0.5, 6))


def start(run: Path, log: Path) -> subprocess.Popen[bytes]:
    """One `mmgrpo next` in a session of its own, its words in a file."""
    command = [sys.executable, "-m", "pipeline.cli", "next", str(ROOT / "data/tiny/recipe.toml"), "--run-dir", str(run)]
    with log.open("wb") as file:
        return subprocess.Popen(
            [*command, *OPTIONS], stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        )


def wait_for(process: subprocess.Popen[bytes], log: Path, plan: Plan) -> str:
    """Until the moment of the plan has come, or the process has ended. Returns the last that it said."""
    while process.poll() is None and len(re.findall(rb": done", log.read_bytes())) < plan.stages:
        time.sleep(0.05)
    until = time.monotonic() + plan.delay_s
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    lines = log.read_text(errors="replace").splitlines() or [""]
    return lines[-1][:60]


def disturbed(run: Path, logs: Path, number: int, plan: Plan) -> dict[str, object]:
    """One process and what was done to it: a line of the journal."""
    began, log = time.time(), logs / f"{number:05d}.log"
    process = start(run, log)
    second = start(run, log.with_suffix(".second.log")) if plan.way == "two" else None
    said = wait_for(process, log, plan) if plan.way not in {"two", "none"} else ""
    hit = process.poll() is None and bool(said or plan.way not in {"two", "none"})
    if hit and plan.way.startswith("stop"):
        process.send_signal(signal.SIGSTOP)
        time.sleep(plan.pause_s)
        process.send_signal(signal.SIGKILL if plan.way == "stop, kill" else signal.SIGCONT)
    elif hit:
        process.send_signal({"kill": signal.SIGKILL, "term": signal.SIGTERM}[plan.way])
    codes = [each.wait(LONGEST_S) for each in (process, second) if each]
    fine = set(codes) <= EXPECTED[plan.way]
    strays = [each.pid for each in (process, second) if each and alive(each.pid)]
    for path in logs.glob(f"{number:05d}*.log"):
        if fine:
            path.unlink()
    return {
        "number": number,
        **asdict(plan),
        "hit": hit or plan.way == "two",
        "said": said,
        "codes": codes,
        "as_expected": fine,
        "strays": len(strays),
        "seconds": round(time.time() - began, 1),
    }


def alive(group: int) -> bool:
    """Whether anything of a process group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def figures(folder: Path, minutes: float, seed: int) -> dict[str, object]:
    """What the journal, the last quiet pass, `verify --deep` and the comparison say."""
    lines = [json.loads(line) for line in (folder / "soak.jsonl").read_text().splitlines()]
    run = folder / "run"
    quiet_pass = start(run, folder / "last.log").wait(LONGEST_S)
    deep = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "verify", str(run), "--deep"],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    (folder / "verify.log").write_text(deep.stdout + deep.stderr)
    state = read_run(run)
    finished = [line for line in lines if line["way"] == "none" or 0 in line["codes"]]
    return {
        "minutes": round(sum(line["seconds"] for line in lines) / 60, 1),
        "asked_minutes": minutes,
        "seed": seed,
        "processes": len(lines) + sum(line["way"] == "two" for line in lines),
        "disturbed": dict(
            sorted(Counter(line["way"] for line in lines if line["hit"] and line["way"] != "none").items())
        ),
        "codes": dict(sorted(Counter(str(code) for line in lines for code in line["codes"]).items())),
        "unexpected_codes": sum(not line["as_expected"] for line in lines),
        "stray_processes": sum(line["strays"] for line in lines),
        "ended_by_themselves": len(finished),
        "iterations": len(state.iterations),
        "artifacts": len(Store(run / "artifacts").all()),
        "quiet_pass": quiet_pass,
        "verify_deep": deep.returncode,
        **left_over(run),
        **compare(run, folder / "quiet", OPTIONS),
    }


def main() -> None:
    """Disturb until the minutes are over, then look at what there is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder: Path = options.folder
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    journal = folder / "soak.jsonl"
    before = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    left = options.minutes * 60 - sum(line["seconds"] for line in before)
    print(f"soak: seed {options.seed}, {left / 60:.1f} minutes left, {len(before)} processes so far", flush=True)
    number, until = len(before), time.monotonic() + left
    while time.monotonic() < until:
        line = disturbed(folder / "run", folder / "logs", number, Plan.drawn(options.seed, number))
        with journal.open("a") as file:
            file.write(json.dumps(line) + "\n")
        number += 1
    shutil.rmtree(folder / "quiet", ignore_errors=True)
    found = figures(folder, options.minutes, options.seed)
    (folder / "soak.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    sys.exit(
        0 if found["verify_deep"] == found["quiet_pass"] == found["unexpected_codes"] == 0 and found["equal"] else 1
    )


if __name__ == "__main__":
    main()
