"""The environment variables that vLLM reads: when it is imported, and when it starts its processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def prepare_environment() -> None:
    """Settings that vLLM reads when it is imported. What the user has set stays."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # forked processes inherit locks of our threads


@contextmanager
def process_environment(device: str, threads: int | None, processes: int, *, eager: bool) -> Iterator[None]:
    """The environment that vLLM's processes are started in. What the user has set stays.

    By itself vLLM leaves a CPU core idle. It is given all; or, where `threads` are asked for, so many that the system
    may place, since several jobs on one machine would be bound to the same cores. Where its graphs are not compiled,
    neither are its small parts, for which it would call a C++ compiler at the first request.
    """
    added: dict[str, str] = {}
    if device == "cpu":
        added = _threads(threads or int(os.environ.get("OMP_NUM_THREADS") or 0), processes)
        added |= {"TORCH_COMPILE_DISABLE": "1"} if eager and "TORCH_COMPILE_DISABLE" not in os.environ else {}
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _threads(given: int, processes: int) -> dict[str, str]:
    if "VLLM_CPU_OMP_THREADS_BIND" in os.environ:
        return {}
    if given:
        return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(given)}
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return {"VLLM_CPU_OMP_THREADS_BIND": cores} if processes == 1 else {}
