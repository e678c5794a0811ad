"""Sample rollouts as a report shows them, whole within bounds, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Clipped:
    """A text of bounded length: beginning, number of characters left out in the middle, end."""

    head: str
    left_out: int = 0
    tail: str = ""


@dataclass(frozen=True)
class Message:
    """A chat message of a prompt."""

    role: str
    content: Clipped


@dataclass(frozen=True)
class Call:
    """One LM call of a sample rollout."""

    call_index: int
    module: str
    invocation_index: int
    attempt: int
    lm: str
    messages: tuple[Message, ...]
    messages_left_out: int
    completion: Clipped | None
    finish_reason: str | None
    parse_status: str
    reward: float | None
    """Reward of its group member; None when it is in no group."""
    advantage: float | None
    copies: int
    """Further members of groups that are copies of it."""
    excluded: str | None
    """Why it is in no group."""


@dataclass(frozen=True)
class Sample:
    """One rollout, shown whole within bounds."""

    kind: Literal["best", "worst", "failed"]
    iteration: int
    rollout_id: str
    example_id: str
    rollout_index: int
    reward: float | None
    reward_parts: dict[str, Any]
    status: str
    error: Clipped | None
    inputs: Clipped | None
    output: Clipped | None
    calls: tuple[Call, ...]
    calls_left_out: int
