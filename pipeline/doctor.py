"""doctor: what is installed, what is missing, and the command that mends it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from pipeline.doctor_engines import engine_findings
from pipeline.doctor_ray import ray_finding
from pipeline.finding import Finding
from pipeline.launching.settings import crowded
from pipeline.terminal import say
from schemas.errors import RecipeError
from schemas.execution import Execution
from stages.engines.files import cache_folder

TAKES = "some 20 seconds, minutes on a slow or busy machine"
"""How long a conversion of the small model takes."""


def examine(execution: Execution, *, convert: bool = False) -> list[Finding]:
    """Look at Python, packages, device, threads, model and engines.

    Args:
        execution: settings of the machine.
        convert: the small model, where that was not done yet: only then is anything made.
    """
    cache = cache_folder(Path(execution.cache) if execution.cache else None)
    model = _model(cache, convert=convert)
    found = [_python(), *_packages(), _device(), _precision(), model, *engine_findings(execution)]
    return [*found, *_processes(execution), ray_finding(execution), _disk(Path.cwd())]


def _python() -> Finding:
    fine = sys.version_info >= (3, 11)
    return Finding("python", platform.python_version(), fine, "" if fine else "install Python 3.11 or newer")


def _packages() -> list[Finding]:
    requirements = [Requirement(line) for line in metadata.requires("mmgrpo") or []]
    return [_package(requirement) for requirement in requirements if requirement.marker is None]


def _package(requirement: Requirement) -> Finding:
    mend = f"pip install '{requirement}'"
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Finding(requirement.name, "not installed", False, mend)
    if version not in requirement.specifier:
        return Finding(requirement.name, f"{version}, tested with {requirement.specifier}", False, mend)
    return Finding(requirement.name, version)


def _device() -> Finding:
    if find_spec("torch") is None:
        return Finding("device", "unknown without torch", False, "make setup")
    import torch

    threads = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    if torch.cuda.is_available():
        return Finding("device", f"cuda ({torch.cuda.get_device_name(0)}), {threads}")
    capability = torch.backends.cpu.get_cpu_capability()
    return Finding("device", f"cpu ({capability}), {threads}")


def _precision() -> Finding:
    if find_spec("torch") is None:
        return Finding("precision", "unknown without torch", False, "make setup")
    from stages.engines.precision import fast_dtype

    fast = fast_dtype("auto")
    slow = "" if fast == "bfloat16" else "; bfloat16, where a recipe asks for it, is many times slower on this CPU"
    return Finding("precision", f"'auto' in a recipe means {fast} here{slow}")


def _model(cache: Path, *, convert: bool) -> Finding:
    from stages.engines.convert import SMOLLM2, smollm2_place
    from stages.engines.models import resolve_base

    try:
        if not (place := smollm2_place(cache)).is_dir():
            if not convert:
                state = f"{SMOLLM2} is installed; the first run that needs it converts it ({TAKES})"
                return Finding("small model", f"{state}, `mmgrpo doctor --convert` does so now")
            say(f"Converting {SMOLLM2} to {place}, once ({TAKES})", file=sys.stderr, flush=True)
        base = resolve_base(SMOLLM2, Path(), cache)
    except RecipeError as error:
        return Finding("small model", "not ready", False, str(error).splitlines()[-1])
    return Finding("small model", f"{SMOLLM2}, digest {base.digest[:12]}, in {base.path}")


def _processes(execution: Execution) -> list[Finding]:
    """Nothing, unless the train stage is to run as several."""
    if not execution.train.several:
        return []
    return [Finding("train.processes", crowded(execution) or f"{execution.train.processes} on this machine")]


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free / 2**30
    return Finding("disk", f"{free:.1f} GiB free in {folder}", free > 1, "" if free > 1 else "make room")


def render(findings: list[Finding]) -> str:
    """The findings as text; what is wrong carries the command that mends it."""
    lines = [f"{'ok' if item.fine else '!!'}  {item.what:<20} {item.state}" for item in findings]
    lines += [f"    mend {item.what}: {item.mend}" for item in findings if not item.fine]
    return "\n".join(lines)
