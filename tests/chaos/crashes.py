"""Programs that crash: 200 rollouts at once, one in twenty of which ends in some exception of the program's own."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.chaos.harness import Bench, Tally
from tests.chaos.signals import hits, send, triggered
from tests.chaos.soak_ends import digests
from tests.test_e2e.kit import recipe_head

EXAMPLES, ROLLOUTS = 20, 10
PROGRAM = '''
import asyncio, hashlib, json

KINDS = ("value", "key", "zero", "deep", "memory", "exit", "cancelled", "own", "generator", "odd words")

def fate(text, salt):
    """What becomes of a run whose first completion is this text: None for nineteen in twenty."""
    drawn = int.from_bytes(hashlib.sha256(f"{salt}/{text}".encode()).digest()[:4], "big")
    return KINDS[drawn // 20 % len(KINDS)] if drawn % 20 == 0 else None

class Own(BaseException):
    """No Exception at all."""

def deep(n):
    return deep(n + 1) + 1

def crash(kind):
    if kind == "value": raise ValueError("chaos: a value")
    if kind == "key": raise KeyError("chaos")
    if kind == "zero": return 1 / 0
    if kind == "deep": return deep(0)
    if kind == "memory": raise MemoryError("chaos")
    if kind == "exit": raise SystemExit(3)
    if kind == "cancelled": raise asyncio.CancelledError
    if kind == "own": raise Own("chaos")
    if kind == "generator": return next(iter(()))
    raise RuntimeError("chaos: \\udcff \\x00 " + "x" * 100_000)

def program(salt=0):
    async def run(inputs, call):
        first = await call("write", [{"role": "user", "content": inputs["word"]}])
        await asyncio.sleep(0)
        if kind := fate(first.text, salt):
            crash(kind)
        second = await call("again", [{"role": "user", "content": first.text}])
        return first.text + second.text
    return run

def metric(example, output, calls):
    return sum(c.islower() for c in output) / max(len(output), 1)
'''
RECIPE = f"""
[rollout]
examples = {EXAMPLES}
rollouts = {ROLLOUTS}
sampling = {{ temperature = 1.0, max_new_tokens = 12 }}
[adapter]
r = 2
[train]
precision = "float32"
[evaluate]
bootstrap = 200
sampling = {{ max_new_tokens = 12 }}
"""


def recipe_in(folder: Path) -> Path:
    """A folder with the program, its examples and a recipe."""
    folder.mkdir(exist_ok=True)
    (folder / "chaotic_program.py").write_text(PROGRAM)
    rows = [f"w{number},{'train' if number < EXAMPLES else 'dev'}\n" for number in range(EXAMPLES + 2)]
    (folder / "examples.csv").write_text("word,split\n" + "".join(rows))
    (folder / "recipe.toml").write_text(recipe_head(128).replace("my_program", "chaotic_program") + RECIPE)
    return folder / "recipe.toml"


def counts(run: Path, salt: int) -> dict[str, Any]:
    """What the tables say, and what the completions say that they ought to say."""
    import sys

    import polars as pl

    from pipeline.reporting.build import build_report
    from pipeline.runfile import read_run
    from pipeline.store import Store

    sys.path.append(str(run.parent / "crashing"))
    from chaotic_program import fate  # type: ignore[import-not-found]

    artifact = Store(run / "artifacts").open("rollout", read_run(run).iterations[0]["rollout"])
    rollouts = pl.read_parquet(artifact.file("rollouts.parquet"))
    calls = pl.read_parquet(artifact.file("invocations.parquet")).filter(pl.col("module") == "write")
    build_report(run, None)
    report = json.loads((run / "report.json").read_text())
    doomed = {row["rollout_id"]: fate(row["completion"], salt) for row in calls.iter_rows(named=True)}
    crashed = set(rollouts.filter(pl.col("status") == "program_error")["rollout_id"])
    return {
        "rows": rollouts.height,
        "ids": rollouts["rollout_id"].n_unique(),
        "expected": sorted(each for each, kind in doomed.items() if kind),
        "crashed": sorted(crashed),
        "kinds": sorted(kind for kind in doomed.values() if kind),
        "statuses": artifact.manifest.metrics["statuses"],
        "reported": report["iterations"][0]["rollouts"]["statuses"],
    }


def crashes(bench: Bench, faults: int, draw: random.Random) -> Tally:
    """Every crash costs its own run and no other, and is counted; a kill in the midst of it changes nothing."""
    tally, number = Tally("program crashes"), 0
    recipe = recipe_in(bench.folder / "crashing")
    while tally.injected < faults:
        number += 1
        salt = draw.randrange(10**6)
        inner = Bench(bench.folder, recipe, (f"program.args.salt={salt}",))

        def rollout(run: Path, disturb: Any = None, inner: Bench = inner) -> Any:
            options = inner.command("stage", run)
            options.insert(1, "rollout")
            return inner.wait(inner.start(options, disturb))

        quiet, run, log = (
            inner.fresh(f"crash-quiet-{number}"),
            inner.fresh(f"crash-{number}"),
            inner.folder / "crash.hits",
        )
        log.unlink(missing_ok=True)
        ended = rollout(quiet)
        if ended.code != 0:
            tally.blame(f"ended with {ended.code}: {ended.said}")
            return tally
        found = inner.ask(lambda run=quiet, salt=salt: counts(run, salt))  # type: ignore[misc]
        for kind in found["kinds"]:
            tally.hit(kind)
        tally.lost_rows += EXAMPLES * ROLLOUTS - found["ids"]
        tally.doubled_rows += found["rows"] - found["ids"]
        whole = found["expected"] == found["crashed"] and sum(found["statuses"].values()) == EXAMPLES * ROLLOUTS
        told = {found[each].get("program_error", 0) for each in ("statuses", "reported")}
        if not whole or told != {len(found["expected"])}:
            tally.blame(f"the counts are not what the completions say: {found}")
        rollout(run, triggered(log, draw, send(9)))  # type: ignore[arg-type]
        for _ in hits(log):
            tally.hit("killed meanwhile")
        ended = rollout(run)
        if ended.code != 0 or digests(run) != digests(quiet):
            tally.blame(f"after a kill it ended with {ended.code}, or with other rows: {ended.said}")
        else:
            tally.recovered += len(found["kinds"]) + len(hits(log))
    return tally


FAMILIES = {"program crashes": crashes}
