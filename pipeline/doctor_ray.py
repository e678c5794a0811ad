"""doctor: whether Ray can share work."""

from __future__ import annotations

import os
import shutil
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from pipeline.finding import Finding
from schemas.errors import StageError
from schemas.execution import Execution
from schemas.installing import install

INSTALL = install("ray")
_SHARED = Path("/dev/shm")  # noqa: S108 - where Ray holds objects, not a file of ours


def ray_finding(execution: Execution) -> Finding:
    """What is installed; whether a cluster answers, where the execution settings ask for Ray."""
    asked = execution.executor == "ray"
    if find_spec("ray") is None:
        return Finding("ray", f"not installed (optional: {INSTALL})", not asked, INSTALL if asked else "")
    version = metadata.version("ray")
    tested = next((line for line in map(Requirement, metadata.requires("mmgrpo") or []) if line.name == "ray"), None)
    if tested is not None and version not in tested.specifier:
        state = f"{version} is installed, tested with {tested.specifier}"
        return Finding("ray", state, not asked, INSTALL if asked else "")
    if not asked:
        return Finding("ray", f"{version} (--exec executor=ray asks for it)")
    return _reached(execution, version)


def _reached(execution: Execution, version: str) -> Finding:
    """A cluster that is there is asked; one of our own would take half a minute to start and is only measured for."""
    address = execution.ray.address or os.environ.get("RAY_ADDRESS")
    if address is None:
        free = shutil.disk_usage(_SHARED).free >> 20 if _SHARED.is_dir() else None
        short = free is not None and free < execution.ray.object_store_mib
        state = f"{version}, starts a cluster on this machine" + (f" ({free} MiB of shared memory)" if free else "")
        mend = "more shared memory (docker run --shm-size), or a smaller ray.object_store_mib"
        return Finding("ray", state, not short, mend if short else "")
    from pipeline.on_ray.cluster import connected

    try:
        with connected(execution) as room:
            return Finding("ray", f"{version}, the cluster at {address} has {room}")
    except StageError as error:
        return Finding("ray", str(error), fine=False, mend="ray start --head, or give ray.address")
