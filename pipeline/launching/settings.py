"""What the execution settings and the scheduler's environment say of a launch, and what of it cannot be."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pipeline.launch import launched
from pipeline.launching.fsdp import check_config
from pipeline.remote.attached import mirror_of
from schemas.errors import RecipeError
from schemas.execution import Execution
from schemas.recipe import Recipe

PORT = "29500"
"""What torchrun takes where MASTER_PORT is not set."""
RANKS = ("SLURM_NODEID", "JOB_COMPLETION_INDEX", "NODE_RANK")
_DRIVER = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True)
class Launch:
    """The processes of one train stage."""

    processes: int
    """On this node."""
    nodes: int
    node_rank: int
    rendezvous: str | None
    """`HOST:PORT` of the first node; None where there is one node only."""
    config: str | None
    """A file of `accelerate config`."""
    threads: int
    """Of each process."""

    @property
    def size(self) -> int:
        """Processes on all nodes."""
        return self.processes * self.nodes

    @property
    def first(self) -> bool:
        """Whether this is the node that writes."""
        return self.node_rank == 0


def launch_of(execution: Execution) -> Launch | None:
    """The launch that the settings ask for; None where the stage runs in this process.

    Raises:
        RecipeError: when a node cannot tell which it is or where the first one is, or there are too few GPUs.
    """
    told = execution.train
    if not told.several:
        return None
    threads = _threads(execution)
    if execution.device != "cpu" and 0 < (gpus := visible_gpus()) < told.processes:
        raise RecipeError(
            f"train.processes = {told.processes}, but this machine shows {gpus} GPU(s), and each process needs its "
            f"own: --exec train.processes={gpus}, or --exec device=cpu"
        )
    if told.nodes == 1:
        return Launch(told.processes, 1, 0, None, told.config, threads)
    return Launch(told.processes, told.nodes, _node_rank(execution), _rendezvous(execution), told.config, threads)


def crowded(execution: Execution) -> str | None:
    """What to know before processes train on fewer cores than they have threads; None where there is nothing."""
    told, threads, cores = execution.train, _threads(execution), _cores()
    if told.processes == 1 or told.processes * threads <= cores or (execution.device != "cpu" and visible_gpus()):
        return None
    fewer = [f"--exec train.processes={cores}"] if told.processes > cores else []
    fewer += ["--exec threads=1"] if threads > 1 else []
    each = f" of {threads} threads each" if threads > 1 else ""
    return (
        f"train.processes = {told.processes}: {told.processes} processes{each} on {cores} core(s) take turns, and all "
        f"wait for the last at every step. Faster: {' '.join(fewer)}"
    )


def check_launch(execution: Execution, recipe: Recipe) -> None:
    """Refuse what a train stage of several processes could only find out later.

    Raises:
        RecipeError: naming the setting.
    """
    told = execution.train
    if not told.several:
        if told.config is not None:
            raise RecipeError("train.config shards the base over processes, and there is one: set train.processes")
        return
    if launched() > 1:
        raise RecipeError(
            f"launched as {launched()} processes already: leave out train.processes and train.nodes, or the launcher"
        )
    if recipe.train.module_norms:
        raise RecipeError(
            "train.module_norms goes with one process: leave out train.processes and train.nodes, or set "
            "train.module_norms = false"
        )
    if told.config is not None:
        check_config(Path(told.config), told.processes, told.nodes)


def refuse_nodes(execution: Execution, command: str) -> None:
    """Refuse commands that several nodes cannot share.

    Raises:
        RecipeError: naming the one that they can.
    """
    if execution.train.nodes > 1:
        raise RecipeError(
            f"train.nodes = {execution.train.nodes}: several nodes share one stage only, `mmgrpo stage train`, and "
            f"`{command}` is more. Run the stages one by one (`mmgrpo render slurm` writes them), or leave out "
            "train.nodes"
        )


def refuse_mirrors(launch: Launch, folder: Path) -> None:
    """Refuse several nodes on a run folder at an address: each would have a mirror of its own.

    Raises:
        RecipeError: naming what they need.
    """
    if launch.nodes > 1 and mirror_of(folder) is not None:
        raise RecipeError(
            f"train.nodes = {launch.nodes}: nodes read checkpoints of each other, and --run-dir is an address. Train "
            "in a run folder on a file system that all nodes share"
        )


def visible_gpus() -> int:
    """GPUs that processes started from here can see, as far as that is told without starting CUDA; else 0."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    if told is not None:
        return len([each for each in told.split(",") if each.strip() and each.strip() != "-1"])
    return len(list(_DRIVER.glob("*"))) if _DRIVER.is_dir() else 0


def _threads(execution: Execution) -> int:
    """Threads of each process."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return execution.threads or (int(given) if given.isdecimal() else max(1, _cores() // execution.train.processes))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _node_rank(execution: Execution) -> int:
    told = execution.train
    if told.node_rank is not None:
        return told.node_rank
    for name in RANKS:
        value = os.environ.get(name)
        if value is not None and value.isdecimal():
            if int(value) >= told.nodes:
                raise RecipeError(f"{name} is {value}, but train.nodes = {told.nodes}: nodes are counted from 0")
            return int(value)
    raise RecipeError(
        f"train.nodes = {told.nodes}, and nothing says which node this is: --exec train.node_rank=0 on the first, 1 on "
        f"the second (or one of {', '.join(RANKS)} in the environment, as srun sets it)"
    )


def _rendezvous(execution: Execution) -> str:
    if execution.train.rendezvous is not None:
        return execution.train.rendezvous
    host = os.environ.get("MASTER_ADDR")
    if not host:
        raise RecipeError(
            f"train.nodes = {execution.train.nodes}, and nothing says where they meet: --exec train.rendezvous="
            "HOST:PORT of the first node, the same on all (or MASTER_ADDR and MASTER_PORT in the environment)"
        )
    return f"{host}:{os.environ.get('MASTER_PORT') or PORT}"
