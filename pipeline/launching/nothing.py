"""The `Out` of a process that helps another one with a stage."""

from __future__ import annotations

from pathlib import Path

from pipeline.manifests import SCRATCH


class KeepsNothing:
    """The `Out` of a process that follows: it sees the leader's scratch folder and changes nothing."""

    def __init__(self, partial: Path) -> None:
        self.scratch = partial / SCRATCH

    def commit_shard(self, name: str, file: Path) -> None:
        """The leader commits."""

    def committed(self, prefix: str = "") -> dict[str, Path]:  # noqa: ARG002 (the contract's signature)
        """Nothing of its own."""
        return {}

    def drop(self, prefix: str) -> None:
        """The leader drops."""

    def exclude(self, reason: str, count: int = 1) -> None:
        """The leader counts."""

    def progress(self, done: int, total: int, unit: str, **figures: float | str) -> None:
        """The leader tells."""

    def telemetry(self, **figures: float) -> None:
        """The leader measures."""
