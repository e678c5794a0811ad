"""A file of `accelerate config`: what of it can be followed, and the environment that accelerate makes of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from schemas.errors import RecipeError

KINDS = ("FSDP", "MULTI_GPU", "MULTI_CPU", "NO")
"""Kinds of distribution that change nothing here, or shard as `stages/training/sharding.py` says."""


def check_config(path: Path, processes: int, nodes: int) -> None:
    """Read the file as far as refusing it takes.

    Raises:
        RecipeError: when it is missing, no such file, of a kind that cannot be, or counts other processes.
    """
    document = _read(path)
    kind = str(document.get("distributed_type", "NO"))
    if kind == "DEEPSPEED":
        raise RecipeError(
            f"{path}: DeepSpeed, whose engine owns backward pass and optimizer, where a step here is the sum of uneven "
            "micro-batches. To shard the base, use distributed_type: FSDP with fsdp_version: 2"
        )
    if kind not in KINDS:
        raise RecipeError(f"{path}: distributed_type {kind} is not supported; expected one of {', '.join(KINDS)}")
    for name, here in (("num_processes", processes * nodes), ("num_machines", nodes)):
        there = document.get(name)
        if there is not None and there != here:
            raise RecipeError(
                f"{path}: {name} is {there}, where --exec train.processes={processes} and train.nodes={nodes} make "
                f"{here}: change one of them"
            )


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"train.config: {path} cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"train.config: {path} is not YAML: {error}") from None
    if not isinstance(document, dict):
        raise RecipeError(f"train.config: {path} is not a file of `accelerate config`")
    return document


def fsdp_environment(path: str, size: int) -> dict[str, str]:
    """The variables by which accelerate tells processes how to shard, as `accelerate launch` sets them.

    Raises:
        RecipeError: when accelerate does not take the file.
    """
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_multi_gpu_env

    words = ["--config_file", path, "--num_processes", str(size), "--num_machines", "1", "--main_process_port", "0"]
    try:
        arguments, *_ = launch._validate_launch_command(launch.launch_command_parser().parse_args([*words, "none"]))
        told: dict[str, str] = prepare_multi_gpu_env(arguments)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise RecipeError(f"{path}: accelerate does not take it: {error}") from None
    mine = ("FSDP_", "ACCELERATE_USE_FSDP")  # what else it sets, train.precision and the settings here decide
    return {name: value for name, value in told.items() if name.startswith(mine) and os.environ.get(name) != value}
