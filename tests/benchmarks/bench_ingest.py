"""Benchmark of ingest: `python -m tests.benchmarks.bench_ingest 10k|100k|1M [rounds]`.

OTLP-JSON lines with two agents a trace, as an instrumented program exports them. Each contestant is a process of its
own and takes its turn in every round: `json`, the bare parse of the same bytes with the standard library, on one
thread; `read`, into the normal form; `ingest`, the whole command, tokens, tables and digests included, in one process;
`shared`, the same with a process for each core. Three show what no ingest can do without: `start`, the command on the
first trace alone, imports and the tokenizer's vocabulary included; `tokenise`, each different text once through the
tokenizer; `parquet`, the snapshot's tables written from memory, unchecked. Ratios are taken within rounds: of the CPU
seconds of all processes of a contestant, and of wall time. Peak memory is that of its largest process, with what
`tokenise` and `parquet` are given before their clock starts. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.ingest_traces import SPANS, write_traces

ROOT = Path(__file__).resolve().parents[2]
CONTESTANTS = ("json", "start", "read", "tokenise", "parquet", "ingest", "shared")
SIZES = {"10k": 10_000, "100k": 100_000, "1M": 1_000_000}
BATCH = 1024
"""Texts that go through the tokenizer at once."""
PROGRAM = """
def program():
    def run(inputs, call):
        said = call("summarizer", [{"role": "user", "content": inputs["question"]}]).text
        return call("classifier", [{"role": "user", "content": said}]).text
    return run

def metric(example, output, calls):
    return 0.0
"""
RECIPE = """
name = "bench"
[model]
base = "smollm2-135m-instruct"
[program]
factory = "bench_program:program"
metric = "bench_program:metric"
[examples]
path = "none.csv"
inputs = ["question"]
"""


def prepared(name: str, traces: Path, scratch: Path) -> Callable[[], int]:
    """One contestant's whole job, which gives how many spans it saw. What it is given is made here, off the clock."""
    if name == "json":
        return lambda: sum(len(spans) for spans in _parsed(traces))
    if name == "read":
        from stages.ingest.formats import format_named, read_items
        from stages.ingest.normal import Span

        return lambda: sum(isinstance(item, Span) for item in read_items(str(traces), format_named("otlp_json")))
    if name == "tokenise":
        return _tokenising(traces)
    if name == "parquet":
        return _writing(traces, scratch)
    from pipeline.pool import cores

    if name == "start":
        with traces.open("rb") as file:
            (scratch / "first.jsonl").write_bytes(file.readline())
        traces = scratch / "first.jsonl"
    return lambda: _ingest(traces, scratch, cores() if name == "shared" else 1)


def _parsed(traces: Path) -> Iterator[list[dict[str, Any]]]:
    """The spans of each line."""
    with traces.open("rb") as file:
        for line in file:
            yield json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]


def _ingest(traces: Path, scratch: Path, workers: int) -> int:
    from pipeline.cli import main

    (scratch / "bench_program.py").write_text(PROGRAM)
    (scratch / "recipe.toml").write_text(RECIPE)
    where = ["--snapshots", str(scratch / "snapshots"), "--exec", "progress=off"]
    where += ["--exec", f"ingest_workers={workers}"]
    assert main(["ingest", str(scratch / "recipe.toml"), str(traces), *where]) == 0
    manifest = next((scratch / "snapshots").glob("ingest/*/manifest.json"))
    return int(json.loads(manifest.read_text())["metrics"]["rollouts"]) * SPANS


def _tokenising(traces: Path) -> Callable[[], int]:
    from stages.engines.models import load_tokenizer, resolve_base

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread, as in ingest
    backend = load_tokenizer(resolve_base("smollm2-135m-instruct", ROOT, None)).backend_tokenizer
    spans, texts = 0, set[str]()
    for found in _parsed(traces):
        spans += len(found)
        for attribute in (item for span in found for item in span["attributes"]):
            if attribute["key"] in ("gen_ai.input.messages", "gen_ai.output.messages"):
                texts |= {said["parts"][0]["content"] for said in json.loads(attribute["value"]["stringValue"])}
    distinct = sorted(texts)

    def job() -> int:
        for start in range(0, len(distinct), BATCH):
            for encoded in backend.encode_batch_fast(distinct[start : start + BATCH], add_special_tokens=False):
                assert encoded.ids
        return spans

    return job


def _writing(traces: Path, scratch: Path) -> Callable[[], int]:
    import pyarrow.parquet as pq

    spans = _ingest(traces, scratch, 1)
    tables = [pq.read_table(path) for path in sorted((scratch / "snapshots").glob("ingest/*/*.parquet"))]

    def job() -> int:
        for table in tables:
            pq.write_table(table, scratch / "again.parquet", compression="zstd", compression_level=3)
        return spans

    return job


def _child(name: str, traces: str) -> None:
    import stages.ingest.formats  # noqa: F401 - imports are no part of reading

    with tempfile.TemporaryDirectory() as scratch:
        job = prepared(name, Path(traces), Path(scratch))
        before, wall = _cpu(), time.perf_counter()
        spans = job()
        took = {"wall": time.perf_counter() - wall, "cpu": _cpu() - before}
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    peak = max(resource.getrusage(who).ru_maxrss for who in whose) / 1024
    print(json.dumps({**took, "spans": spans, "peak_mib": peak}))


def _cpu() -> float:
    """Seconds of this process and of those that it has waited for."""
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + others.ru_utime + others.ru_stime


def run(size: str, rounds: int) -> dict[str, Any]:
    """All contestants on traces of one size."""
    with tempfile.TemporaryDirectory() as folder:
        traces = Path(folder) / "traces.jsonl"
        write_traces(traces, SIZES[size])
        found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
        for _ in range(rounds):
            for name in CONTESTANTS:
                command = [sys.executable, "-m", __spec__.name, "--child", name, str(traces)]
                done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
        megabytes = traces.stat().st_size / 2**20
    counts = {item["spans"] for name, items in found.items() for item in items if name != "start"}
    assert counts == {SIZES[size]}, f"the contestants saw {counts} spans, not {SIZES[size]}"
    return {"size": size, "spans": SIZES[size], "mib": round(megabytes, 1), "results": _summary(found)}


def _summary(found: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    def middle(values: list[float]) -> float:
        return round(statistics.median(values), 3)

    bare = found["json"]
    return {
        name: {
            "cpu": middle([item["cpu"] for item in items]),
            "wall": middle([item["wall"] for item in items]),
            "spans_per_second": round(middle([item["spans"] / item["wall"] for item in items])),
            "peak_mib": round(max(item["peak_mib"] for item in items)),
            "cpu_ratio": middle([item["cpu"] / other["cpu"] for item, other in zip(items, bare, strict=True)]),
            "wall_ratio": middle([item["wall"] / other["wall"] for item, other in zip(items, bare, strict=True)]),
        }
        for name, items in found.items()
    }


def _main() -> None:
    size = sys.argv[1] if len(sys.argv) > 1 else "100k"
    if size not in SIZES:
        raise SystemExit(f"unknown size {size}; sizes are {', '.join(SIZES)}")
    result = run(size, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
    for name, row in result["results"].items():
        print(f"{name:<10}" + "  ".join(f"{key} {value:g}" for key, value in row.items()))
    print(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(*sys.argv[2:4])
    else:
        _main()
