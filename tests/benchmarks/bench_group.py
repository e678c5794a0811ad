"""Benchmark of the group stage: `python -m tests.benchmarks.bench_group 100k|1M|10M [rounds]`.

Every contestant lives in its own process, imports first, runs once unmeasured, and then takes its turn in each round;
ratios are taken within rounds, so that a busy machine slows all alike. All of them read the same files, do the same
mode (see `group_peers`) and write groups and excluded rows; their groups are compared with ours. `floor` is the bare
scan of the columns that are read plus the bare write of the same output by pyarrow, with the same settings. The last
line is one JSON object.
"""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks import group_peers
from tests.benchmarks.group_tables import sizes, write_tables

ROOT = Path(__file__).resolve().parents[2]
PEERS = ("duckdb", "pandas", "loop")
BYTES_A_ROW = {"pandas": 1900, "loop": 2600}
"""Peak memory that these peers were seen to take; one that does not fit in what is free is left out, and said so."""


def ours(folder: Path, out: Path, pad: str = "fill_last") -> None:
    """The group stage's job, without the runner around it."""
    import polars as pl

    from schemas.execution import Execution
    from schemas.recipe import Recipe
    from stages.grouping.files import TableFiles
    from stages.grouping.rules import rules_of
    from stages.grouping.sources import policy_ages
    from stages.grouping.tables import open_tables
    from stages.grouping.write import write_tables as write_groups
    from tests.test_stages.group_kit import MemoryOut

    recipe = Recipe.model_validate(
        {
            "name": "bench",
            "model": {"base": "tiny-random"},
            "program": {"factory": "a:b", "metric": "a:c"},
            "examples": {"path": "x", "inputs": ["q"]},
            "group": {"pad": pad, "k": group_peers.K},
        }
    )
    rules = rules_of(recipe)
    ages = policy_ages(pl.DataFrame({"policy": ["0" * 64], "iteration": [0]}))
    files = TableFiles((folder / "rollouts.parquet",), (folder / "invocations.parquet",))
    write_groups(open_tables([files], rules), ages, rules, Execution().group_rows, MemoryOut(out))


def paper(folder: Path, out: Path) -> None:
    """Ours in the paper's own mode, with seeded fill."""
    ours(folder, out, "fill")


def floor(folder: Path, out: Path) -> None:
    """The bare scan and the bare write."""
    import polars as pl
    import pyarrow.parquet as pq

    global _output  # noqa: PLW0603
    pl.scan_parquet(folder / "rollouts.parquet").select(group_peers.ROLLOUTS).collect()
    pl.scan_parquet(folder / "invocations.parquet").select(group_peers.CALLS).collect()
    if _output is None:
        _output = {name: pq.read_table(folder / "ours" / f"{name}.parquet") for name in ("groups", "excluded")}
        raise _WarmedUp
    for name, table in _output.items():
        settings = {"compression": "zstd", "compression_level": 1, "write_statistics": False, "row_group_size": 1 << 17}
        pq.write_table(table, out / f"{name}.parquet", **settings)


class _WarmedUp(Exception):
    """The floor's first turn reads what it will write."""


_output: dict[str, Any] | None = None


def serve(name: str, folder: Path) -> None:
    """A contestant's process: one JSON line of figures for each line on stdin."""
    job = {"ours": ours, "paper": paper, "floor": floor}.get(name) or getattr(group_peers, name)
    out = folder / name
    out.mkdir(exist_ok=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        with contextlib.suppress(_WarmedUp):
            job(folder, out)
        figures = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        figures["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(figures), flush=True)


class Contestant:
    """A contestant's process, from here."""

    def __init__(self, name: str, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.benchmarks.bench_group", "--serve", name, str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.figures: list[dict[str, float]] = []

    def turn(self) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a contestant ended with {self.process.wait()}")
        figures: dict[str, float] = json.loads(line)
        return figures

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(folder: Path, name: str) -> None:
    """Assert that a contestant made our groups: the same members with the same advantages, and the same excluded."""
    import polars as pl

    key = ["example_id", "module", "invocation_index", "rollout_id", "call_index", "copy_kind"]
    both = []
    for who in ("ours", name):
        frame = pl.read_parquet(folder / who / "groups.parquet")
        text = frame.with_columns(pl.col("example_id", "module", "rollout_id", "copy_kind").cast(pl.String))
        both.append(text.select(*key, "reward", "advantage").sort(*key, "advantage"))
    assert both[0].select(key).equals(both[1].select(key)), f"{name} made other groups"
    for column in ("reward", "advantage"):
        worst = (both[0].get_column(column) - both[1].get_column(column)).abs().max()
        assert worst is None or worst < 1e-9, f"{name}: {column} differs by {worst}"
    rows = []
    for who in ("ours", name):
        frame = pl.read_parquet(folder / who / "excluded.parquet").select(
            pl.col("rollout_id").cast(pl.String), pl.col("call_index").cast(pl.Int32), pl.col("reason").cast(pl.String)
        )
        rows.append(frame.sort("rollout_id", "call_index"))
    assert rows[0].equals(rows[1]), f"{name} excluded other rows"


def main(size: str, rounds: int) -> None:
    wanted = dict(sizes())[size]
    with tempfile.TemporaryDirectory(prefix="bench-group-") as name:
        folder = Path(name)
        rows = write_tables(folder, wanted)[2]
        once = ("loop",) if wanted > 1_000_000 else ()
        fitting = [who for who in PEERS if BYTES_A_ROW.get(who, 0) * rows < 0.8 * available()]
        print("".join(f"{who} left out: not enough memory\n" for who in PEERS if who not in fitting), end="")
        contestants = {who: Contestant(who, folder) for who in ("ours", "paper", *fitting, "floor")}
        first = {who: each.turn() for who, each in contestants.items()}
        for who in fitting:
            compare(folder, who)
        for _ in range(rounds):
            for who, each in contestants.items():
                if who not in once:
                    each.figures.append(each.turn())
        for who in set(once) & set(fitting):
            contestants[who].figures = [first[who]] * rounds
        for each in contestants.values():
            each.close()
        report(size, rows, {who: each.figures for who, each in contestants.items()})


def available() -> int:
    """Bytes of memory that are free for new processes."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def report(size: str, rows: int, figures: dict[str, list[dict[str, float]]]) -> None:
    """Print the table, and the same as one JSON object."""
    found: dict[str, Any] = {"size": size, "rows": rows, "rounds": len(figures["ours"])}
    print(f"{rows} invocations, {found['rounds']} rounds, medians; ratio is wall time over ours, within a round")
    print(f"{'':8} {'wall s':>8} {'CPU s':>8} {'peak MiB':>9} {'rows/s':>11} {'ratio':>6}")
    for who, turns in figures.items():
        wall, cpu = (statistics.median(turn[name] for turn in turns) for name in ("wall", "cpu"))
        peak = max(turn["peak"] for turn in turns) / 2**20
        ratio = statistics.median(a["wall"] / b["wall"] for a, b in zip(turns, figures["ours"], strict=True))
        found[who] = {"wall_s": wall, "cpu_s": cpu, "peak_mib": peak, "rows_per_s": rows / wall, "ratio": ratio}
        print(f"{who:8} {wall:8.3f} {cpu:8.3f} {peak:9.0f} {rows / wall:11.0f} {ratio:6.2f}")
    found["ratio_to_fastest_peer"] = min(found[who]["ratio"] for who in PEERS if who in found)
    found["ratio_to_floor"] = 1 / found["floor"]["ratio"]
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2], Path(sys.argv[3]))
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5)
