"""Benchmark of sampling: `python -m tests.benchmarks.bench_rollout`, options below; see `rollout_contestants`.

Three programs over SmolLM2-135M, the same rollouts for every contestant. Each runs in a process of its own, one after
another; what it found is kept in the work folder, so that a benchmark that was stopped, or of which one contestant
failed, goes on with the same command. Figures of other code or other options are never taken up. A result file keeps
what it has of workloads and contestants that are not measured now, where machine and options are the same; only counts
may differ from workload to workload. Ratios are of generated tokens a second by the wall; CPU seconds stand beside
them, for busy machines. The last line is one JSON object. Exit code 1 when a contestant failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from schemas.canonical import digest, digest_file
from tests.benchmarks.rollout_summary import joined, summary, table
from tests.benchmarks.rollout_workloads import ROOT, WORKLOADS

CONTESTANTS = ("ours", "window", "ceiling", "generate", "plain", "vllm", "vllm_window", "vllm_ceiling")
"""In the order they run: the first records what most others are asked."""
SETTING = ("base", "dtype", "threads", "cores")
COUNTS = ("rollouts", "plain_rollouts", "concurrency")
"""Options that decide figures; the counts may differ from workload to workload."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default="smollm2-135m-instruct", help="a base model, or the folder of one")
    parser.add_argument("--cache", type=Path, help="folder of converted models")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--rollouts", type=int, default=64, help="of a workload, 8 on each example (default: 64)")
    parser.add_argument(
        "--plain-rollouts", type=int, help="of them, how many the plain ways make: rates are compared (default: all)"
    )
    parser.add_argument("--concurrency", type=int, default=64, help="rollouts in flight (default: 64)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores")
    parser.add_argument("--vllm-python", type=Path, default=ROOT / ".venv-vllm/bin/python", help="one that has vLLM")
    parser.add_argument("--work", type=Path, default=ROOT / "runs/bench-rollout", help="where figures are kept")
    parser.add_argument("--fresh", action="store_true", help="measure again what is there")
    parser.add_argument("--result", type=Path, help="a JSON file to write")
    parser.add_argument("--alone", nargs=2, metavar=("CONTESTANT", "WORKLOAD"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.cores = len(os.sched_getaffinity(0))
    if chosen.rollouts < 8 or chosen.rollouts % 8:
        parser.error(f"--rollouts is {chosen.rollouts}, expected a multiple of 8")
    chosen.plain_rollouts = chosen.plain_rollouts or chosen.rollouts
    if chosen.plain_rollouts % 8 or chosen.rollouts % chosen.plain_rollouts:
        parser.error(f"--plain-rollouts is {chosen.plain_rollouts}, expected a multiple of 8 that divides --rollouts")
    if chosen.dtype == "auto":
        from stages.engines.precision import fast_dtype

        chosen.dtype = fast_dtype("cpu")
    return chosen


def alone(chosen: argparse.Namespace) -> None:
    """One contestant on one workload, in this process; its figures go into the work folder."""
    from pipeline.provenance import package_versions
    from schemas.execution import Execution
    from stages.engines.factory import release
    from tests.benchmarks.rollout_contestants import CONTESTANTS as KNOWN
    from tests.benchmarks.rollout_workloads import task

    who, workload = chosen.alone
    run, engine = KNOWN[who]
    execution = Execution.model_validate(
        {
            "engine": engine,
            "device": "cpu",
            "threads": chosen.threads,
            "concurrency": chosen.concurrency,
            "cache": None if chosen.cache is None else str(chosen.cache),
            "progress": "off",
        }
    )
    with tempfile.TemporaryDirectory(prefix="bench-rollout-") as name:
        made = task(workload, Path(name), chosen.base, chosen.dtype, chosen.rollouts, execution)
        made = replace(made, plain_rollouts=chosen.plain_rollouts)
        found = run(made, requests_file(chosen, who, workload), Path(name))
    _keep(chosen, who, workload, {"figures": found, "packages": package_versions()})
    release()  # vLLM's processes


def requests_file(chosen: argparse.Namespace, who: str, workload: str) -> Path:
    """Where what `ours` asked its engine is kept; ours on vLLM keeps its own, which nobody reads."""
    return Path(chosen.work) / f"{workload}-{'vllm' if who == 'vllm' else 'ours'}-requests.json"


def _keep(chosen: argparse.Namespace, who: str, workload: str, found: dict[str, Any]) -> None:
    file = _file(chosen, who, workload)
    draft = file.with_suffix(".part")
    draft.write_text(json.dumps({"of": _identity(chosen)} | found, indent=1) + "\n")
    draft.replace(file)


def _file(chosen: argparse.Namespace, who: str, workload: str) -> Path:
    return Path(chosen.work) / f"{workload}-{who}.json"


def _identity(chosen: argparse.Namespace) -> dict[str, Any]:
    """What figures belong to: options, and all code that can change them."""
    parts = ("schemas", "stages", "pipeline/tasks")
    files = [file for part in parts for file in sorted((ROOT / part).rglob("*.py"))]
    files += sorted((ROOT / "tests/benchmarks").glob("*rollout*.py"))
    code = digest({str(file.relative_to(ROOT)): digest_file(file) for file in files})
    return {name: getattr(chosen, name) for name in SETTING + COUNTS} | {"code": code, "machine": _machine()}


def main(chosen: argparse.Namespace) -> int:
    chosen.work.mkdir(parents=True, exist_ok=True)
    print(
        f"{_machine()}, {chosen.threads} threads, {chosen.dtype}, {chosen.concurrency} rollouts in flight", flush=True
    )
    contestants = _present(chosen)
    found: dict[str, dict[str, Any]] = {}
    packages: dict[str, dict[str, str]] = {}
    for workload in chosen.workloads:
        found[workload] = {}
        for who in contestants:
            each = _measured(chosen, who, workload)
            found[workload][who] = each["figures"]
            packages["vllm" if who.startswith("vllm") else "transformers"] = each.get("packages", {})
        print("\n" + table({workload: found[workload]}) + "\n", flush=True)
    setting = {name: getattr(chosen, name) for name in SETTING}
    counts = {name: getattr(chosen, name) for name in COUNTS}
    about = {"device": _machine(), **setting, "packages": packages, "counts": dict.fromkeys(found, counts)}
    print(json.dumps({name: value for name, value in (about | summary(found)).items() if name != "packages"}))
    if chosen.result:
        _write(chosen.result, about | {"workloads": found})
    return int(any("failed" in each for figures in found.values() for each in figures.values()))


def _write(file: Path, result: dict[str, Any]) -> None:
    """The result file, with what it has already of the same machine and setting."""
    kept = json.loads(file.read_text()) if file.is_file() else {}
    if all(kept.get(name) == result[name] for name in ("device", *SETTING)):
        result = joined(kept, result)
    elif kept:
        print(f"{file} was of another machine or with other options: nothing of it is kept", flush=True)
    file.write_text(json.dumps(result | summary(result["workloads"]), indent=1) + "\n")


def _present(chosen: argparse.Namespace) -> list[str]:
    """The contestants that can run here."""
    if chosen.vllm_python.is_file() or not any(who.startswith("vllm") for who in chosen.contestants):
        return list(chosen.contestants)
    print(f"no vLLM: there is no {chosen.vllm_python}. `make test-vllm` makes one; or name another by --vllm-python.")
    return [who for who in chosen.contestants if not who.startswith("vllm")]


def _measured(chosen: argparse.Namespace, who: str, workload: str) -> dict[str, Any]:
    """What is kept of a contestant, or else what it finds now; a failure is told and not kept."""
    file, identity = _file(chosen, who, workload), _identity(chosen)
    if file.is_file() and not chosen.fresh:
        kept: dict[str, Any] = json.loads(file.read_text())
        if kept["of"] == identity:
            print(f"{workload:10} {who:13} kept from before", flush=True)
            return kept
    file.unlink(missing_ok=True)
    log = file.with_suffix(".log")
    with log.open("w") as stream:
        done = subprocess.run(_command(chosen, who, workload), stdout=stream, stderr=stream, cwd=ROOT, check=False)
    if done.returncode or not file.is_file():
        last = (log.read_text().strip().splitlines() or ["it said nothing"])[-1]
        print(f"{workload:10} {who:13} FAILED with {done.returncode}: {last} (all of it: {log})", flush=True)
        return {"figures": {"failed": last[:300]}}
    measured: dict[str, Any] = json.loads(file.read_text())
    print(f"{workload:10} {who:13} {measured['figures']['seconds']:.1f} s", flush=True)
    return measured


def _command(chosen: argparse.Namespace, who: str, workload: str) -> list[str]:
    python = str(chosen.vllm_python) if who.startswith("vllm") else sys.executable
    command = [python, "-m", "tests.benchmarks.bench_rollout", "--alone", who, workload]
    for name in ("base", "dtype", "rollouts", "plain_rollouts", "concurrency", "threads", "cache", "work"):
        if getattr(chosen, name) is not None:
            command += [f"--{name.replace('_', '-')}", str(getattr(chosen, name))]
    return command


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else platform.processor() or 'a CPU'}"


if __name__ == "__main__":
    given = options()
    if given.alone:
        alone(given)
    else:
        raise SystemExit(main(given))
