"""Which files of which artifacts a training job reads."""

from __future__ import annotations

from pathlib import Path

from stages.contract import Artifact, Inputs


def invocation_files(inputs: Inputs) -> list[Path]:
    """invocations.parquet of every artifact whose role is `rollout` or `rollout.NAME`, in order of role."""
    return [artifact.file("invocations.parquet") for artifact in _roles(inputs, "rollout")]


def logprob_files(inputs: Inputs) -> list[Path]:
    """logprobs.parquet of every artifact whose role is `logprobs.NAME`, in order of role."""
    return [artifact.file("logprobs.parquet") for artifact in _roles(inputs, "logprobs")]


def _roles(inputs: Inputs, stage: str) -> list[Artifact]:
    roles = sorted(role for role in inputs.artifacts if role.partition(".")[0] == stage)
    return [inputs[role] for role in roles]
