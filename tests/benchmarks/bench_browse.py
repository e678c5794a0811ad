"""Paging through all rollouts of a large run: `python -m tests.benchmarks.bench_browse FOLDER [ROLLOUTS]`.

The run is made up once, with four calls a rollout and prompts of 2,000 characters; each question is asked of a local
server over HTTP three times, as the page asks it, and the median is told: of wall time, and of CPU seconds of server
and client together.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, cast

import polars as pl

from pipeline.browsing.section import rollout_section
from pipeline.browsing.server import ReportServer
from pipeline.runfile import NAME
from schemas.canonical import canonical_json
from schemas.groups import EXCLUDED, GROUPS
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from tests.test_pipeline.report_run import Rows, RunWriter, call_row, member_row, rollout_row

CALLS = 4
PER_EXAMPLE = 20
INSTRUCTIONS = "Say what is asked for, in few words, and nothing else. " * 36


def make(folder: Path, rollouts: int) -> Path:
    """A run of one iteration, written by columns: rows as dictionaries would take minutes."""
    if (folder / NAME).exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)  # of a try that was stopped
    folder.mkdir(parents=True)
    writer = RunWriter(folder, iterations=1, examples=rollouts // PER_EXAMPLE)
    writer.add_setup()
    ids = pl.DataFrame({"at": range(rollouts)}).select(
        "at",
        rollout_id=pl.format(
            "{}{}", pl.col("at").hash(1).cast(pl.String).str.slice(0, 12), pl.col("at").cast(pl.String)
        ),
        example_id=pl.Series([writer.example_ids[at // PER_EXAMPLE] for at in range(rollouts)]),
    )
    made = _table(rollout_row("", 0, writer.policies[0], "", 0, 0.5, failed=False), ids).with_columns(
        rollout_index=pl.col("at") % PER_EXAMPLE,
        reward=(pl.col("at") * 7919 % 1000) / 1000,
        status=pl.when(pl.col("at") % 50 == 0).then(pl.lit("parse_failed")).otherwise(pl.lit("ok")),
        output=pl.concat_str(pl.lit('{"answer":"answer '), "at", pl.lit('"}')),
    )
    calls = pl.concat([_calls(ids, at) for at in range(CALLS)]).sort("at", "call_index")
    members = calls.select(
        *(pl.lit(value).alias(name) for name, value in _member().items()), *["rollout_id", "call_index"]
    )
    members = members.with_columns(
        group_id=(pl.int_range(pl.len()) // PER_EXAMPLE).cast(pl.String),
        member_index=pl.int_range(pl.len()) % PER_EXAMPLE,
        advantage=(pl.int_range(pl.len()) % 41 - 20) / 10,
    )
    tables = {
        "rollouts.parquet": (ROLLOUTS, _cast(made, ROLLOUTS)),
        "invocations.parquet": (INVOCATIONS, _cast(calls, INVOCATIONS)),
    }
    grouped = {"groups.parquet": (GROUPS, _cast(members, GROUPS)), "excluded.parquet": (EXCLUDED, cast("Rows", []))}
    writer.iterations.append({"rollout": writer.artifact("rollout", "r", cast("Any", tables))})
    writer.iterations[-1]["group"] = writer.artifact("group", "g", cast("Any", grouped))
    return writer.write()


def _calls(ids: pl.DataFrame, at: int) -> pl.DataFrame:
    messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": "NUMBER"}]
    before, after = canonical_json(messages).split("NUMBER")
    row = call_row("", at, f"module_{at % 3}", at // 3, "")
    return _table(row, ids).with_columns(
        messages=pl.concat_str(pl.lit(f"{before}question "), "at", pl.lit(f" of {at}{after}")),
        completion=pl.concat_str(
            pl.lit("reasoning about number "), "at", pl.lit(f" leads to the answer {at}, at length")
        ),
        completion_ids=pl.lit([3, 4, 5, 6] * 15),
        sampling_logprobs=pl.lit([-0.5, -0.25, -2.0, -0.125] * 15),
    )


def _member() -> dict[str, Any]:
    row = member_row(("", "module_0", 0), 0, {"rollout_id": "", "call_index": 0}, "none", 0.5, 0.0)
    return {name: value for name, value in row.items() if name not in {"rollout_id", "call_index"}}


def _table(row: dict[str, Any], ids: pl.DataFrame) -> pl.DataFrame:
    """A row for each id, the same but for its ids."""
    return ids.with_columns(pl.lit(value).alias(name) for name, value in row.items() if name not in ids.columns)


def _cast(table: pl.DataFrame, spec: Any) -> Any:
    absent = [pl.lit(None).alias(name) for name in spec.schema.names if name not in table.columns]
    return table.with_columns(absent).select(spec.schema.names).to_arrow().cast(spec.schema)


QUESTIONS = {
    "facets": "/api/facets",
    "first page": "/api/rollouts",
    "last page": "/api/rollouts?page=999999999",
    "best first": "/api/rollouts?sort=best&page=40",
    "a module": "/api/rollouts?module=module_2",
    "a status and a range of rewards": "/api/rollouts?status=ok&reward_min=0.25&reward_max=0.5",
    "a text": "/api/rollouts?q=the%20ANSWER%203",
    "everything at once": "/api/rollouts?q=number%207&module=module_1&status=ok&reward_min=0.5&sort=worst",
}


def measure(folder: Path) -> None:
    """Ask every question and print the seconds."""
    with ReportServer(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        origin, token = server.address.split("/?")

        def seconds(path: str) -> tuple[float, float, bytes]:
            began, spent = time.perf_counter(), time.process_time()
            with urllib.request.urlopen(f"{origin}{path}{'&' if '?' in path else '?'}{token}") as answer:
                body: bytes = answer.read()
            return time.perf_counter() - began, time.process_time() - spent, body

        rows = json.loads(seconds("/api/rollouts?page=30")[2])["rows"]
        row = rows[7]
        questions = QUESTIONS | {"a rollout": f"/api/rollout/{row['rollout_id']}?artifact={row['artifact']}"}
        for name, path in questions.items():
            told = [seconds(path) for _ in range(3)]
            wall, spent = (statistics.median(answer[kind] for answer in told) for kind in (0, 1))
            body = json.loads(told[-1][2])
            found = f"{body['total']:,} fit" if "total" in body else ""
            print(f"{name:34} {wall:6.3f} s, {spent:6.3f} s of CPU  {found}", flush=True)
        server.shutdown()
    began, spent = time.perf_counter(), time.process_time()
    size = len(rollout_section(folder).encode())
    wall, spent = time.perf_counter() - began, time.process_time() - spent
    print(f"{'the sample for the report':34} {wall:6.3f} s, {spent:6.3f} s of CPU  {size:,} bytes")


if __name__ == "__main__":
    run = make(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
    measure(run)
