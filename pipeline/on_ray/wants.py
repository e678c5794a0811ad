"""What each actor takes of a cluster that is there, and what it is given."""

from __future__ import annotations

import os
from math import floor
from pathlib import Path
from typing import Any

from pipeline.on_ray.actor import Setting, build
from pipeline.on_ray.members import Note, Wanted
from schemas.errors import StageError
from schemas.execution import Execution
from schemas.recipe import Recipe

GIVEN = ("HF_", "MMGRPO_", "TOKENIZERS_", "OMP_WAIT_POLICY")
"""Environment variables that actors are given begin with one of these, beside those that are named."""


def wanted_of(execution: Execution, recipe: Recipe | None, note: Note, folder: Path, *, own: bool) -> Wanted:
    """What an actor takes.

    Args:
        execution: settings of the machine.
        recipe: names the variables that keys are in.
        note: says something to the user.
        folder: where the command was typed.
        own: whether the cluster is this machine alone, so that what it has no room for never comes.

    Raises:
        StageError: where such a cluster has no room for one actor.
    """
    section, has = execution.ray, resources()
    gpus = section.gpus if section.gpus is not None else _gpus(execution, has)
    options: dict[str, Any] = {"num_cpus": section.cpus, "num_gpus": gpus}
    if section.memory_gib is not None:
        options["memory"] = int(section.memory_gib * 2**30)
    fits = [floor(has.get("CPU", 0.0) / section.cpus)]
    fits += [floor(has.get("GPU", 0.0) / gpus)] if gpus else []
    fits += [floor(has.get("memory", 0.0) / options["memory"])] if "memory" in options else []
    if own and min(fits) < 1:
        raise StageError(
            f"an actor wants {section.cpus:g} cores"
            f"{f', {gpus:g} GPUs' if gpus else ''}{f', {section.memory_gib:g} GiB' if section.memory_gib else ''}, "
            f"and this machine has {room(has)}: ask for less (ray.cpus, ray.gpus, ray.memory_gib)"
        )
    return Wanted(
        actors=section.actors or max(1, min(fits)),
        options=options,
        setting=Setting(build(), _env(execution, recipe), str(folder)),
        section=section,
        note=note,
        room=lambda: room(resources()),
    )


def _gpus(execution: Execution, has: dict[str, float]) -> float:
    """Of an actor, where nothing is said: one, where the cluster has some and the engine can use it."""
    wants = execution.engine != "server" and execution.device != "cpu"
    return 1.0 if wants and has.get("GPU", 0.0) >= 1 else 0.0


def _env(execution: Execution, recipe: Recipe | None) -> dict[str, str]:
    """What is set for actors. Values are sent to them and written nowhere."""
    section = execution.ray
    threads = str(execution.threads or max(1, int(section.cpus)))
    named = {*section.env, execution.server.api_key_env}
    if recipe is not None:
        named |= {recipe.ingest.key_env, *(lm.api_key_env for lm in recipe.lms.values())}
    given = {name: value for name, value in os.environ.items() if name in named or name.startswith(GIVEN)}
    return {**given, "OMP_NUM_THREADS": threads, "POLARS_MAX_THREADS": threads}


def resources() -> dict[str, float]:
    """What the cluster has, as Ray names it."""
    import ray

    found: dict[str, float] = ray.cluster_resources()
    return found


def room(has: dict[str, float]) -> str:
    """The resources of a cluster in words."""
    gpus = f", {has['GPU']:g} GPUs" if has.get("GPU") else ", no GPU"
    return f"{has.get('CPU', 0):g} cores{gpus}, {has.get('memory', 0) / 2**30:.1f} GiB"
