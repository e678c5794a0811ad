"""Equal inputs give equal bytes: any order and sharding of files, any range, engine and number of threads."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.canonical import digest_file
from stages.grouping.files import TableFiles
from tests.benchmarks.group_tables import write_tables
from tests.test_stages.group_kit import recipe, run_group, tables, write_inputs
from tests.test_stages.test_group_oracle import rules

NAMES = ("groups.parquet", "excluded.parquet", "summary.parquet")
POLICIES = [{"policy": "0" * 64, "iteration": 0}]


def digests(folder: Path, files: Sequence[TableFiles], recipe_: Any, **how: Any) -> list[str]:
    out, _ = run_group(folder, files, recipe_, **how)
    return [digest_file(out.shards[name]) for name in NAMES]


def shard(path: Path, folder: Path, shards: int, seed: int) -> tuple[Path, ...]:
    """The file's rows in another order, cut into files of another order."""
    rng, table = random.Random(seed), pq.read_table(path)
    order = list(range(table.num_rows))
    rng.shuffle(order)
    table = table.take(pa.array(order, pa.int64()))
    folder.mkdir(parents=True)
    paths = []
    for number in range(shards):
        first, last = (table.num_rows * at // shards for at in (number, number + 1))
        paths.append(folder / f"{path.stem}-{rng.random()}.parquet")
        pq.write_table(table.slice(first, last - first), paths[-1])
    return tuple(paths)


@settings(max_examples=15, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(tables(), rules(), st.integers(1, 4), st.integers(0, 99), st.integers(1, 20))
def test_order_sharding_ranges_and_engine_change_no_byte(
    data: Any, group: dict[str, Any], shards: int, seed: int, limit: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rules_ = recipe(**group)
        files = write_inputs(folder, *data)
        wanted = digests(folder, [files], rules_)
        other = TableFiles(
            shard(files.rollouts[0], folder / "r", shards, seed), shard(files.calls[0], folder / "c", shards, seed)
        )
        assert digests(folder, [other], rules_) == wanted
        assert digests(folder, [other], rules_, limit=limit) == wanted
        assert digests(folder, [files], rules_, limit=limit) == wanted
        with pl.Config(engine_affinity="streaming"):
            assert digests(folder, [other], rules_) == wanted


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> TableFiles:
    folder = tmp_path_factory.mktemp("large")
    rollouts, calls, rows = write_tables(folder, 60_000)
    assert rows > 50_000
    return TableFiles((rollouts,), (calls,))


@pytest.mark.parametrize("group", [{}, {"scale": "module_std", "k": 7, "select": "random", "pad": "ragged"}])
def test_a_large_table_has_the_same_bytes_by_ranges_from_shards_and_with_the_streaming_engine(
    large: TableFiles, tmp_path: Path, group: dict[str, Any]
) -> None:
    rules_ = recipe(**{"k": 12, **group})
    wanted = digests(tmp_path, [large], rules_, policies=POLICIES)
    assert digests(tmp_path, [large], rules_, policies=POLICIES, limit=30_000) == wanted
    shards = TableFiles(shard(large.rollouts[0], tmp_path / "r", 3, 1), shard(large.calls[0], tmp_path / "c", 5, 2))
    assert digests(tmp_path, [shards], rules_, policies=POLICIES) == wanted
    assert digests(tmp_path, [shards], rules_, policies=POLICIES, limit=30_000) == wanted
    with pl.Config(engine_affinity="streaming"):
        assert digests(tmp_path, [large], rules_, policies=POLICIES) == wanted


SCRIPT = """
import sys
from pathlib import Path
from stages.grouping.files import TableFiles
from tests.test_stages.group_kit import recipe
from tests.test_stages.test_group_bytes import POLICIES, digests
folder, rollouts, calls = map(Path, sys.argv[1:])
print(*digests(folder, [TableFiles((rollouts,), (calls,))], recipe(k=12), policies=POLICIES))
"""


def test_the_number_of_threads_changes_no_byte(large: TableFiles, tmp_path: Path) -> None:
    found = set()
    for threads in ("1", "3"):
        environment = {**os.environ, "POLARS_MAX_THREADS": threads, "PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / threads), str(large.rollouts[0]), str(large.calls[0])]
        found.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert len(found) == 1
    assert len(found.pop().split()) == 3
