"""Checkpoints inside a stage: safetensors and JSON, replaced atomically, never pickled.

Random numbers need no saving: every step seeds its own.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_PREFIX = "checkpoint-"

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """The state after some steps of a stage."""

    adapter: Tensors
    optimizer: Tensors
    steps: list[dict[str, Any]]
    """Rows of the steps table so far, one a step taken."""


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, then remove the one before it. A kill leaves one or the other whole."""
    temporary = folder / f".{_PREFIX}partial"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_file(checkpoint.adapter, temporary / "adapter.safetensors")
    save_file(checkpoint.optimizer, temporary / "optimizer.safetensors")
    (temporary / "steps.json").write_text(json.dumps(checkpoint.steps))
    for file in temporary.iterdir():
        _sync(file)
    before = _found(folder)
    temporary.rename(folder / f"{_PREFIX}{len(checkpoint.steps):06d}")
    for old in before:
        shutil.rmtree(old)


def load(folder: Path) -> Checkpoint | None:
    """The latest checkpoint, or None."""
    found = _found(folder)
    if not found:
        return None
    latest = found[-1]
    return Checkpoint(
        load_file(latest / "adapter.safetensors"),
        load_file(latest / "optimizer.safetensors"),
        json.loads((latest / "steps.json").read_text()),
    )


def _found(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_PREFIX}*"))


def _sync(file: Path) -> None:
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
