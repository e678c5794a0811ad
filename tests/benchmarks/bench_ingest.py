"""Benchmark of ingest: `python -m tests.benchmarks.bench_ingest 10k|100k|1M [rounds]`.

OTLP-JSON lines with two agents a trace, as an instrumented program exports them. Each contestant is a process of its
own and takes its turn in every round: `json`, the bare parse of the same bytes with the standard library, on one
thread; `read`, into the normal form; `ingest`, the whole command, tokens, tables and digests included, in one process;
`shared`, the same with a process for each core. Ratios are taken within rounds: of the CPU seconds of all processes of
a contestant, and of wall time. Peak memory is that of its largest process. The last line is one JSON object.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CONTESTANTS = ("json", "read", "ingest", "shared")
SIZES = {"10k": 10_000, "100k": 100_000, "1M": 1_000_000}
SPANS = 5
"""Of a trace."""
TOPICS = (
    "a lost card",
    "the exchange rate",
    "a refund that is late",
    "the age limit",
    "a new PIN",
    "the app on a phone",
)
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


def write_traces(path: Path, spans: int) -> None:
    """Traces of five spans each, one a line."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(spans // SPANS):
            scope = {"scope": {"name": "app"}, "spans": _trace(number)}
            file.write(json.dumps({"resourceSpans": [{"scopeSpans": [scope]}]}) + "\n")


def _trace(number: int) -> list[dict[str, Any]]:
    question = (
        f"Customer {number // 4}: tell me about {TOPICS[number % len(TOPICS)]}, please, and what I have to do now."
    )
    begin = 1_790_000_000_000_000_000 + number * 10**9
    evaluation = {"gen_ai.evaluation.name": "right", "gen_ai.evaluation.score.value": float(number % 3 == 0)}
    root = _span(number, 0, None, "invoke_workflow", begin, {"input.value": json.dumps({"question": question})})
    root["events"] = [{"name": "gen_ai.evaluation.result", "attributes": _attributes(evaluation)}]
    found = [root]
    for place, (agent, order, answer) in enumerate(
        (
            ("summarizer", "Summarize the customer's question.", question[12:60]),
            ("classifier", "Name the intent.", "card_arrival"),
        )
    ):
        asked = [("system", order), ("user", question)]
        call = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "a-model",
            "gen_ai.request.temperature": 0.7,
            "gen_ai.input.messages": json.dumps([_said(role, text) for role, text in asked]),
            "gen_ai.output.messages": json.dumps([_said("assistant", answer)]),
            "gen_ai.response.finish_reasons": ["stop"],
        }
        at = begin + (place + 1) * 10**8
        naming = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent}
        found.append(_span(number, 1 + 2 * place, 0, f"invoke_agent {agent}", at, naming))
        found.append(_span(number, 2 + 2 * place, 1 + 2 * place, "chat a-model", at + 1000, call))
    return found


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _span(
    number: int, place: int, parent: int | None, name: str, begin: int, attributes: dict[str, Any]
) -> dict[str, Any]:
    above = {} if parent is None else {"parentSpanId": f"{number * SPANS + parent + 1:016x}"}
    return {
        "traceId": f"{number + 1:032x}",
        "spanId": f"{number * SPANS + place + 1:016x}",
        **above,
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(begin),
        "endTimeUnixNano": str(begin + 5 * 10**7),
        "attributes": _attributes(attributes),
        "status": {},
    }


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    def typed(value: Any) -> dict[str, Any]:
        if isinstance(value, list):
            return {"arrayValue": {"values": [typed(item) for item in value]}}
        return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}

    return [{"key": key, "value": typed(value)} for key, value in values.items()]


def contend(name: str, traces: Path, scratch: Path) -> int:
    """One contestant's whole job; returns how many spans it saw."""
    if name == "json":
        with traces.open("rb") as file:
            parsed = (json.loads(line) for line in file)
            return sum(len(value["resourceSpans"][0]["scopeSpans"][0]["spans"]) for value in parsed)
    if name == "read":
        from stages.ingest.formats import format_named, read_items
        from stages.ingest.normal import Span

        return sum(isinstance(item, Span) for item in read_items(str(traces), format_named("otlp_json")))
    from pipeline.cli import main
    from pipeline.pool import cores

    (scratch / "bench_program.py").write_text(PROGRAM)
    (scratch / "recipe.toml").write_text(RECIPE)
    workers = cores() if name == "shared" else 1
    where = ["--snapshots", str(scratch / "snapshots"), "--exec", "progress=off"]
    where += ["--exec", f"ingest_workers={workers}"]
    assert main(["ingest", str(scratch / "recipe.toml"), str(traces), *where]) == 0
    manifest = next((scratch / "snapshots").glob("ingest/*/manifest.json"))
    return int(json.loads(manifest.read_text())["metrics"]["rollouts"]) * SPANS


def _child(name: str, traces: str) -> None:
    import stages.ingest.formats  # noqa: F401 - imports are no part of the job

    with tempfile.TemporaryDirectory() as scratch:
        wall, cpu = time.perf_counter(), time.process_time()
        spans = contend(name, Path(traces), Path(scratch))
        others = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = time.process_time() - cpu + others.ru_utime + others.ru_stime
        took = {"wall": time.perf_counter() - wall, "cpu": cpu}
    peak = max(others.ru_maxrss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024
    print(json.dumps({**took, "spans": spans, "peak_mib": peak}))


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
    counts = {item["spans"] for items in found.values() for item in items}
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
        print(f"{name:<8}" + "  ".join(f"{key} {value:g}" for key, value in row.items()))
    print(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(*sys.argv[2:4])
    else:
        _main()
