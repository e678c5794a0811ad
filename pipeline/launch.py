"""Whether `torchrun` or `accelerate launch` started this command as one of several processes."""

from __future__ import annotations

import os

from schemas.errors import RecipeError


def launched() -> int:
    """How many processes this command was started as."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def follows() -> bool:
    """Whether this process is one of several, and not the first."""
    return launched() > 1 and int(os.environ.get("RANK", "0")) > 0


def own_device() -> None:
    """One GPU a process: the launcher gave it a number on this machine. Before anything starts CUDA."""
    local = os.environ.get("LOCAL_RANK")
    if launched() > 1 and local is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = visible.split(",") if visible else None
        os.environ["CUDA_VISIBLE_DEVICES"] = devices[int(local) % len(devices)] if devices else local


def refuse_many(command: str) -> None:
    """Refuse commands that several processes cannot share.

    Raises:
        RecipeError: naming the one that they can.
    """
    if launched() > 1:
        raise RecipeError(
            f"`mmgrpo {command}` was launched as {launched()} processes; several processes share one stage only: "
            "`stage train`"
        )
