"""Benchmark of the trainer: `python -m tests.benchmarks.bench_train`, options below; see `train_contestants`.

Three workloads of real rows in groups of 8 (`train_rows`). Every contestant runs in a process of its own, one after
another. Tokens per second count the tokens of the unpacked, unpadded rows, for all contestants; operations are those
really performed, matrix products and attention, as a share of what one large matrix product of the same dtype
reaches on the same threads in this run. Ratios are of wall time; CPU seconds stand beside it, for busy machines. The
gradient norms of a workload must agree. A first step, in which kernels are made and operations counted, is not timed.
Where the stock trainer runs out of memory it is tried again with half the rows. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CONTESTANTS = ("stock", "plain", "packed")
EXAMPLES = {
    "cpu": {"banking77": 4, "papillon": 2, "multihop": 1},
    "cuda": {"banking77": 8, "papillon": 4, "multihop": 4},
}
"""Examples of a workload in one optimizer step, each sampled 8 times."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--base", default="smollm2-135m-instruct", help="a base model, or the folder of one")
    parser.add_argument("--cache", type=Path, help="folder of converted models")
    parser.add_argument("--precision", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--workloads", nargs="+", choices=list(EXAMPLES["cpu"]), default=list(EXAMPLES["cpu"]))
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--examples", type=int, help="in a step, 8 rollouts each (default: see EXAMPLES)")
    parser.add_argument("--steps", type=int, help="measured steps (default: 1 on a CPU, 5 on a GPU)")
    parser.add_argument("--warm", type=int, help="steps before them (default: 1 on a CPU, 3 on a GPU)")
    parser.add_argument("--tokens", type=int, help="our micro-batch (default: 4096 on a CPU, 16384 on a GPU)")
    parser.add_argument("--stock-rows", type=int, default=8, help="most rows of the stock trainer's micro-batch")
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--result", type=Path, help="a JSON file to write")
    parser.add_argument("--alone", nargs=2, metavar=("CONTESTANT", "WORKLOAD"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    on_cpu = chosen.device == "cpu"
    defaults = {"steps": 1 if on_cpu else 5, "warm": 1 if on_cpu else 3, "tokens": 4096 if on_cpu else 16384}
    for name, value in defaults.items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)
    return chosen


def alone(chosen: argparse.Namespace) -> dict[str, Any]:
    """One contestant on one workload, in this process: its figures."""
    import torch

    from tests.benchmarks import train_contestants
    from tests.benchmarks.train_rows import artifacts, grouped

    who, workload = chosen.alone
    examples = chosen.examples or EXAMPLES[chosen.device][workload]
    threads = chosen.threads or torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="bench-train-") as name:
        folder = Path(name)
        inputs = artifacts(workload, examples, folder / "in", chosen.base, chosen.cache)
        setting = train_contestants.Setting(
            inputs,
            _recipe(chosen, examples),
            chosen.device,
            threads,
            chosen.tokens,
            chosen.stock_rows,
            chosen.cache,
            folder,
        )
        if who == "stock":
            watch, figures = train_contestants.stock(setting)
        else:
            watch, figures = train_contestants.ours(setting, packed=who == "packed")
        rows = [row for group in grouped(inputs) for row in group]
    tokens = sum(len(row["prompt_ids"]) + len(row["completion_ids"]) for row in rows)
    seconds, processor = (sorted(watch.seconds(clock)[chosen.warm :])[chosen.steps // 2] for clock in (0, 1))
    return figures | {
        "seconds": seconds,
        "cpu_seconds": processor,
        "rows": len(rows),
        "row_tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "flops": watch.flops,
        "flops_per_second": watch.flops / seconds,
        "peak_mib": _peak_memory(chosen.device) / 2**20,
    }


def _recipe(chosen: argparse.Namespace, examples: int) -> Any:
    from schemas.recipe import Recipe

    return Recipe.model_validate(
        {
            "name": "bench",
            "model": {"base": chosen.base, "dtype": chosen.precision},
            "program": {"factory": "a:b", "metric": "a:c"},
            "examples": {"path": "x", "inputs": ["q"]},
            "rollout": {"sampling": {"max_new_tokens": 96}},
            "adapter": {"r": 16, "alpha": 32},
            "train": {
                "precision": chosen.precision,
                "learning_rate": 1e-6,
                "examples_per_step": examples,
                "epochs": chosen.warm + chosen.steps,
                "beta": 0.0,
                "rho": "none",
                "ess_floor": 0.0,
                "grad_clip": 1e9,
            },
        }
    )


def _peak_memory(device: str) -> int:
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def matmul_peak(device: str, precision: str, threads: int | None) -> float:
    """Operations a second of the best of several large square matrix products."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    size = 2048 if device == "cpu" else 8192
    left, right = (torch.randn(size, size, device=device, dtype=getattr(torch, precision)) for _ in range(2))
    best = float("inf")
    for _ in range(12):
        started = time.perf_counter()
        torch.mm(left, right)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best


def main(chosen: argparse.Namespace) -> None:
    from stages.engines.precision import fast_dtype

    if chosen.precision == "auto":
        chosen.precision = fast_dtype(chosen.device)
    peak = matmul_peak(chosen.device, chosen.precision, chosen.threads)
    print(f"{chosen.device}, {chosen.precision}: one large matrix product reaches {peak / 1e9:,.1f} GFLOP/s")
    heads = ("s/step", "CPU s", "tokens/s", "ratio", "peak MiB", "computed", "of peak")
    print(" " * 19 + "".join(f" {head:>9}" for head in heads))
    found: dict[str, Any] = {}
    for workload in chosen.workloads:
        figures = {who: _measured(chosen, who, workload) for who in chosen.contestants}
        found[workload] = figures
        for who, each in figures.items():
            each["of_peak"] = each["flops_per_second"] / peak
            each["cpu_ratio"] = figures[chosen.contestants[0]]["cpu_seconds"] / each["cpu_seconds"]
            each["ratio"] = each["tokens_per_second"] / figures[chosen.contestants[0]]["tokens_per_second"]
            cells = (
                f"{each['seconds']:.2f}",
                f"{each['cpu_seconds']:.2f}",
                f"{each['tokens_per_second']:.0f}",
                f"{each['ratio']:.2f}",
                f"{each['peak_mib']:.0f}",
                str(each["computed_tokens"]),
                f"{each['of_peak']:.0%}",
            )
            print(f"{workload:10} {who:8}" + "".join(f" {cell:>9}" for cell in cells), flush=True)
        _same_gradients(workload, figures, chosen.precision)
    summary = {
        "device": chosen.device,
        "precision": chosen.precision,
        "peak_gflops": peak / 1e9,
        "ratio_to_stock_trl": {name: each["packed"]["ratio"] for name, each in found.items() if "packed" in each},
        "workloads": found,
    }
    if chosen.result:
        chosen.result.write_text(json.dumps(summary | {"packages": _packages()}, indent=1) + "\n")
    print(json.dumps(summary))


def _measured(chosen: argparse.Namespace, who: str, workload: str) -> dict[str, Any]:
    """The figures of one contestant; the stock trainer's with the most rows a micro-batch that fit into memory."""
    rows = chosen.stock_rows
    while True:
        done = _process(chosen, who, workload, rows)
        if done.returncode == 0:
            figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return figures | ({"micro_batch_rows": rows} if who == "stock" else {})
        if done.returncode != -signal.SIGKILL or who != "stock" or rows == 1:
            raise SystemExit(f"{who} on {workload} ended with {done.returncode}")
        print(f"{workload:10} {who:8} out of memory with {rows} rows a micro-batch", flush=True)
        rows //= 2


def _process(chosen: argparse.Namespace, who: str, workload: str, rows: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.benchmarks.bench_train", "--alone", who, workload]
    command += ["--stock-rows", str(rows)]
    for name in ("device", "base", "precision", "steps", "warm", "tokens"):
        command += [f"--{name.replace('_', '-')}", str(getattr(chosen, name))]
    for name in ("threads", "cache", "examples"):
        if getattr(chosen, name):
            command += [f"--{name}", str(getattr(chosen, name))]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)


def _same_gradients(workload: str, figures: dict[str, dict[str, Any]], precision: str) -> None:
    """All contestants took the same step: their gradient norms agree."""
    norms = [each["grad_norm"] for each in figures.values()]
    allowed = 1e-3 if precision == "float32" else 0.1
    assert max(norms) - min(norms) <= allowed * max(norms), f"{workload}: gradient norms differ: {norms}"


def _packages() -> dict[str, str]:
    from pipeline.provenance import package_versions

    return package_versions()


if __name__ == "__main__":
    given = options()
    if given.alone:
        print(json.dumps(alone(given)))
    else:
        main(given)
