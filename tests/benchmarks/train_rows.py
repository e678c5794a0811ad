"""The rows of the trainer's benchmark: made once by really sampling, kept as the tables that the train stage reads.

`python -m tests.benchmarks.train_rows RUNS` runs rollout and group of three recipes (a few minutes on a CPU) and
writes `data/train_rows/<workload>/`. Prompts and completions stay as token ids; texts are left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl

from pipeline import runfile
from pipeline.store import Store
from schemas.groups import GROUPS
from schemas.parquet import read_frame, write_table
from schemas.policies import POLICIES, policy_digest
from schemas.rollouts import INVOCATIONS
from schemas.table import TableSpec
from stages.contract import Inputs
from stages.engines.models import resolve_base
from tests.test_stages.train_kit import artifact

ROOT = Path(__file__).resolve().parents[2]
ROWS = ROOT / "data" / "train_rows"
WORKLOADS = {"banking77": ("banking77_8", 8), "papillon": ("pupa", 4), "multihop": ("multihop_small", 4)}
"""Recipe folder, and examples that are sampled 8 times each."""
TEXTS = ("inputs", "outputs", "completion")


def make(runs: Path) -> None:
    """Sample, group, and keep the rows of every workload. Flat groups are kept: they cost what others cost."""
    for name, (recipe, examples) in WORKLOADS.items():
        options = [f"data/{recipe}/recipe.toml", "--run-dir", str(runs / name)]
        options += ["--set", f"rollout.examples={examples}", "--set", "group.flat=keep"]
        for stage in ("base", "rollout", "group"):
            subprocess.run([sys.executable, "-m", "pipeline.cli", "stage", stage, *options], check=True, cwd=ROOT)
        keep(runs / name, ROWS / name)


def keep(run: Path, folder: Path) -> None:
    """Write a run's members and their calls, without texts, into a folder."""
    chosen, store = runfile.read_run(run).iterations[0], Store(run / "artifacts")
    groups = read_frame(store.open("group", chosen["group"]).file("groups.parquet"), GROUPS)
    calls = read_frame(store.open("rollout", chosen["rollout"]).file("invocations.parquet"), INVOCATIONS)
    write_rows(groups, calls, folder)


def write_rows(groups: pl.DataFrame, calls: pl.DataFrame, folder: Path) -> None:
    """Write members and the calls that they point to, texts left out."""
    calls = calls.join(groups.select("rollout_id", "call_index"), on=["rollout_id", "call_index"], how="semi")
    texts = [pl.lit(None, pl.String).alias(name) for name in TEXTS]
    calls = calls.with_columns(*texts, messages=pl.lit("[]")).sort("rollout_id", "call_index")
    folder.mkdir(parents=True, exist_ok=True)
    write_table(groups.to_dicts(), folder / "groups.parquet", GROUPS)
    write_table(calls.to_dicts(), folder / "invocations.parquet", INVOCATIONS)


def artifacts(name: str, examples: int, root: Path, base: str, cache: Path | None) -> Inputs:
    """The train stage's input artifacts: the first examples of a workload over a base model."""
    digest = resolve_base(base, ROOT, cache).digest
    for part in ("base", "rollout", "group"):
        (root / part).mkdir(parents=True)
    (root / "base" / "base.json").write_text(json.dumps({"base": digest}))
    first = {"policy": policy_digest(digest, {}), "base": digest, "adapters": "{}", "iteration": 0}
    write_table([first], root / "base" / "policies.parquet", POLICIES)
    groups = kept(ROWS / name / "groups.parquet", GROUPS)
    ids = groups["example_id"].unique().sort()[:examples].to_list()
    groups = groups.filter(pl.col("example_id").is_in(ids))
    write_table(groups.to_dicts(), root / "group" / "groups.parquet", GROUPS)
    calls = kept(ROWS / name / "invocations.parquet", INVOCATIONS)
    write_table(calls, root / "rollout" / "invocations.parquet", INVOCATIONS)
    return Inputs({part: artifact(root / part) for part in ("base", "rollout", "group")}, {"iteration": 0}, ROOT)


def kept(file: Path, spec: TableSpec) -> pl.DataFrame:
    """A table as it was kept, in its columns of today: those that came later are null."""
    frame = pl.read_parquet(file)
    columns = pl.from_arrow(spec.schema.empty_table()).schema
    return frame.select(
        pl.col(name) if name in frame.columns else pl.lit(None, kind).alias(name) for name, kind in columns.items()
    )


def grouped(inputs: Inputs) -> list[list[dict[str, Any]]]:
    """The members of every group with their tokens, groups ordered by their longest row."""
    groups = read_frame(inputs["group"].file("groups.parquet"), GROUPS)
    calls = read_frame([inputs["rollout"].file("invocations.parquet")], INVOCATIONS)
    tokens = calls.select("rollout_id", "call_index", "prompt_ids", "completion_ids", "temperature")
    joined = groups.join(tokens, on=["rollout_id", "call_index"], how="left").sort("group_id", "member_index")
    parts = [part.to_dicts() for part in joined.partition_by("group_id", maintain_order=True)]
    return sorted(parts, key=lambda rows: max(len(row["prompt_ids"]) + len(row["completion_ids"]) for row in rows))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
