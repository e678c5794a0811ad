"""Bytes that change behind our back: every one is named by `verify`, and what it tells to do mends the run."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from pipeline.manifests import MANIFEST
from tests.chaos.harness import Bench, Tally

BATCH = 30
"""Faults in one copy of a run."""


def flipped(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def cut(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])


def zeroed(path: Path, draw: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def grown(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes() + draw.randbytes(draw.randint(1, 4096)))


def shuffled(path: Path, draw: random.Random) -> None:
    data = bytearray(draw.randbytes(path.stat().st_size))
    path.write_bytes(data)


def gone(path: Path, draw: random.Random) -> None:
    path.unlink()


def replaced(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


WAYS: dict[str, Callable[[Path, random.Random], None]] = {
    "a bit flipped": flipped,
    "cut off": cut,
    "all zeros": zeroed,
    "grown": grown,
    "other bytes": shuffled,
    "deleted": gone,
    "a folder in its place": replaced,
}
RECORDS = ("decisions", "looks.jsonl")


def targets(run: Path, draw: random.Random, count: int) -> list[Path]:
    """Files to harm, each of which must be told: nothing hides behind a manifest that is harmed too."""
    files = [
        path
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.stat().st_size and not path.name.endswith(".lock") and "report." not in path.name
    ]
    draw.shuffle(files)
    index, chosen = draw.random() < 0.3, []
    for path in files:
        place = path.relative_to(run).parts[0]
        manifest = path.name == MANIFEST
        if (place == "run.json") > index or (index and (manifest or place in RECORDS)):
            continue  # without run.json nobody knows what else there ought to be
        if place in RECORDS and any(other.relative_to(run).parts[0] in RECORDS for other in chosen):
            continue  # what one of them has lost only the other tells
        twins = [other for other in chosen if artifact(run, other) == artifact(run, path) != run]
        if not any(manifest or other.name == MANIFEST for other in twins):
            chosen.append(path)
    return chosen[:count]


def artifact(run: Path, path: Path) -> Path:
    """The artifact that a file belongs to; the run, where it belongs to none."""
    parts = path.relative_to(run).parts
    return run.joinpath(*parts[:3]) if parts[0] == "artifacts" else run


def mend(bench: Bench, run: Path, path: Path) -> None:
    """What the messages say: restore a record; delete an artifact or run.json, which are made again."""
    if (folder := artifact(run, path)) != run:
        shutil.rmtree(folder, ignore_errors=True)
        return
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if path.name != "run.json":
        shutil.copy(bench.quiet / path.relative_to(run), path)


def corrupted(bench: Bench, faults: int, draw: random.Random) -> Tally:
    """Harm files of a finished run, ask `verify`, do what it says, and run again."""
    tally, number = Tally("corruption"), 0
    while tally.injected < faults:
        number += 1
        run = bench.copied(f"corrupt-{number}")
        paths = targets(run, draw, min(BATCH, faults - tally.injected))
        told = {}
        for path in paths:
            told[path] = draw.choice(list(WAYS))
            WAYS[told[path]](path, draw)
            tally.hit(told[path])
        ended = bench.wait(bench.start(["verify", str(run)]))
        if ended.code != 3 or not ended.clear:
            tally.blame(f"verify ended with {ended.code}: {ended.said}")
        for path, way in told.items():
            named = str(path if path.parent.name != "decisions" or path.exists() else path.parent) in ended.said
            tally.refused += named
            if not named:
                tally.blame(f"{path.relative_to(run)}, {way}: verify does not name it: {ended.said[-900:]}")
        for path in paths:
            mend(bench, run, path)
        bench.settle(run, tally, len(paths))
    return tally


def halfway(bench: Bench, faults: int, draw: random.Random) -> Tally:
    """What a stage is about to read is harmed: it refuses, names the file, and reads on once that is mended."""
    tally, run = Tally("harmed inputs"), bench.copied("harmed")
    for name in ("train", "logprobs", "group", "evaluate", "drift"):
        shutil.rmtree(run / "artifacts" / name, ignore_errors=True)
    files = [path.relative_to(run) for path in sorted(run.rglob("*")) if read_first(run, path)]
    while tally.injected < faults:
        name = draw.choice(files)
        way = draw.choice(["a bit flipped", "cut off", "all zeros", "other bytes"])
        whole = (run / name).read_bytes()
        WAYS[way](run / name, draw)
        if (run / name).read_bytes() == whole:
            continue
        tally.hit(way)
        ended = bench.attempt(run)
        tally.refused += ended.clear
        if ended.code != 3 or not ended.clear or str(run / name) not in ended.said:
            tally.blame(f"{name}, {way}: the run ended with {ended.code}: {ended.said}")
        (run / name).write_bytes(whole)
    bench.settle(run, tally, tally.injected)
    return tally


def read_first(run: Path, path: Path) -> bool:
    """Whether the next job reads it: a manifest of set-up, or what the base's evaluation takes."""
    stage = path.relative_to(run).parts[1] if path.is_file() and "artifacts" in path.parts else ""
    return stage in {"examples", "program", "base"} and path.name in {MANIFEST, "examples.parquet", "base.json"}


def bare(bench: Bench, faults: int, draw: random.Random) -> Tally:
    """A folder that has lost its manifest is no artifact: it is named and in nobody's way once it is taken away."""
    tally, run = Tally("lost manifest"), bench.copied("bare")
    folders = [path.parent for path in sorted(run.rglob(MANIFEST))]
    draw.shuffle(folders)
    for folder in folders[: min(faults, 6)]:
        (folder / MANIFEST).unlink()
        tally.hit(folder.parent.name)
        ended = bench.attempt(run)
        tally.refused += ended.clear
        if ended.code != 3 or not ended.clear or str(folder) not in ended.said:
            tally.blame(f"{folder.parent.name}: the run ended with {ended.code}: {ended.said}")
        shutil.rmtree(folder)
    bench.settle(run, tally, tally.injected)
    return tally


FAMILIES = {"corruption": corrupted, "harmed inputs": halfway, "lost manifest": bare}
