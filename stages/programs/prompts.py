"""Frozen prompts: what the prompts stage made, as the stages that run the program take it."""

from __future__ import annotations

from pathlib import Path

from schemas.canonical import digest
from stages.contract import Inputs

STATE = "state.json"
"""The file of a prompts artifact that holds instructions and demonstrations, as `program.save` writes them."""


def frozen_prompts(inputs: Inputs) -> Path | None:
    """The saved state to load into the program; None where prompts are not optimized."""
    return inputs["prompts"].file(STATE) if "prompts" in inputs.artifacts else None


def running_digest(inputs: Inputs) -> str:
    """The digest of the program as it runs: with frozen prompts it is another one."""
    program = inputs["program"].digest
    return digest({"program": program, "prompts": inputs["prompts"].digest}) if frozen_prompts(inputs) else program
