"""The chaos suite: families of faults, each ended by a quiet rerun that must equal a run nobody disturbed.

`python -m tests.chaos.suite FOLDER` runs the long form and goes on with the family at which it was stopped; `--short`
has a fault or two of each but `LONG_ALONE`. `--seed N --only FAMILY --faults N` repeats one. It prints a line a family,
and one of JSON at its end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.chaos import corruption, crashes, inputs, objects, on_ray, schedulers, servers, signals, storage
from tests.chaos.harness import SMALL, Bench, Tally

Family = Callable[[Bench, int, random.Random], Tally]
FAMILIES: dict[str, Family] = {
    **signals.FAMILIES,
    **storage.FAMILIES,
    **schedulers.FAMILIES,
    **corruption.FAMILIES,
    **servers.FAMILIES,
    **crashes.FAMILIES,
    **inputs.FAMILIES,
    **objects.FAMILIES,
    **on_ray.FAMILIES,
}
LONG = {
    "kill": 100,
    "term": 30,
    "stop": 20,
    "full disk": 60,
    "read-only": 20,
    "failing storage": 100,
    "clock": 100,
    "two schedulers": 15,
    "dead holder": 100,
    "corruption": 600,
    "harmed inputs": 40,
    "lost manifest": 6,
    "server": 400,
    "program crashes": 50,
    "settings": 400,
    "object store": 8,
    "ray": 10,
}
"""Faults of the long form."""
SHORT = {"server": 20, "corruption": 10, "program crashes": 1, "settings": 20, "clock": 1}
"""Faults of the short form, where they are not one."""
LONG_ALONE = {"object store", "ray"}
"""Families that the short form leaves out: a cluster or a store alone takes longer to start than it has."""


SMALLER = ("run.iterations=1", "rollout.rollouts=3")
"""What of the recipe is less in the short form."""


def line(found: dict[str, Any]) -> str:
    """A family in a line."""
    told = (
        f"{found['family']}: {found['injected']} injected, {found['recovered']} recovered, {found['refused']} refused"
    )
    wrong = f", WRONG: {found['wrong'][0]}" if found["wrong"] else ""
    return f"{told}, lost {found['lost_rows']}, doubled {found['doubled_rows']} ({found['seconds']:.0f} s){wrong}"


def one(bench: Bench, name: str, faults: int, seed: int) -> dict[str, Any]:
    """Run a family."""
    began, cpu = time.monotonic(), _cpu()
    try:
        tally = FAMILIES[name](bench, faults, random.Random(f"{seed}/{name}"))
    except Exception as error:  # noqa: BLE001 - told as what is wrong with the family
        tally = Tally(name)
        tally.blame(f"{type(error).__name__}: {error}")
    took = {"seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(_cpu() - cpu, 1)}
    return {**asdict(tally), "where": dict(sorted(tally.where.items())), **took}


def _cpu() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def total(found: dict[str, dict[str, Any]], seed: int) -> dict[str, Any]:
    """All families together."""
    sums = {
        name: sum(each[name] for each in found.values())
        for name in ("injected", "recovered", "refused", "lost_rows", "doubled_rows")
    }
    return {"seed": seed, **sums, "wrong": sum(len(each["wrong"]) for each in found.values()), "families": found}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(FAMILIES))
    parser.add_argument("--faults", type=int, help="of each family; default: the long form's")
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    print(f"chaos: seed {options.seed}", flush=True)
    options.folder.mkdir(parents=True, exist_ok=True)
    done = options.folder / ("short" if options.short else "long")
    done.mkdir(exist_ok=True)
    bench = Bench(options.folder.resolve() / "work", settings=SMALL + SMALLER if options.short else SMALL)
    bench.folder.mkdir(exist_ok=True)
    found: dict[str, dict[str, Any]] = {}
    prepared = False
    for name in options.only or [name for name in FAMILIES if not (options.short and name in LONG_ALONE)]:
        faults = options.faults or (SHORT.get(name, 1) if options.short else LONG[name])
        file = done / f"{name}-{options.seed}-{faults}.json"
        if not file.exists():
            if not prepared:
                bench.prepare()
                prepared = True
            result = one(bench, name, faults, options.seed)
            if not result["wrong"]:
                file.write_text(json.dumps(result))
            found[name] = result
        else:
            found[name] = json.loads(file.read_text())
        print(line(found[name]), flush=True)
    summary = total(found, options.seed)
    (done / "suite.json").write_text(json.dumps(summary, indent=1) + "\n")
    if not summary["wrong"]:
        shutil.rmtree(bench.folder)
    print(json.dumps(summary))
    sys.exit(1 if summary["wrong"] or summary["lost_rows"] or summary["doubled_rows"] else 0)


if __name__ == "__main__":
    main()
