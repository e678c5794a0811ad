"""What the first screen of a report answers, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Level = Literal["good", "plain", "warning"]
Kind = Literal["gained", "lost", "back again"]
"""What became of an example."""


@dataclass(frozen=True)
class Answer:
    """A question that everybody asks of a run, and what its numbers say to it."""

    key: str
    """Its name in report.json: better, real, cost, data, failures, next."""
    question: str
    value: str
    """The answer in a number or a few words."""
    text: str
    """The same in a sentence or two."""
    level: Level
    section: str
    """Id of the section of the page that has the rest."""
    command: str | None = None
    """What to type, where there is something."""


@dataclass(frozen=True)
class Advice:
    """Something worth doing next."""

    title: str
    """In a few words."""
    text: str
    """Why, with the numbers that say so."""
    level: Level
    command: str | None = None


@dataclass(frozen=True)
class Compared:
    """A policy of the run beside all others: what came before it in its iteration, and how it scored."""

    position: int
    """0 is the policy that the run started from; position n was made by iteration n - 1."""
    iteration: int | None
    """None for the policy that the run started from."""
    policy: str | None
    """Digest; None while it is being made."""
    score: float | None
    low: float | None
    high: float | None
    to_first: str
    to_previous: str
    to_released: str
    """Paired differences with their intervals, in words; a dash where there is none."""
    gate: str
    """What the release gate said of it; a dash where it was not asked."""
    reward: float | None
    """Mean reward of the iteration's rollouts."""
    failed_share: float | None
    """Of its rollouts."""
    flat_share: float | None
    steps: int | None
    kl_old: float | None
    """Nats a token, mean over steps: how far the iteration went."""
    ess: float | None
    seconds: float | None
    """Of its stages, scoring its policy included; in the first row, of all that comes before the iterations."""
    completion_tokens: int | None
    money: float | None
    """At the recipe's prices; None where a price is missing."""


@dataclass(frozen=True)
class Flip:
    """An example of the dev split whose score changed between policies."""

    example_id: str
    kind: Kind
    """Of the last policy against the first; `back again` where both are equal and one between them is not."""
    inputs: str
    """The beginning of its inputs; empty where they are not known."""
    scores: tuple[float, ...]
    """Of each policy that `Flips.positions` names; samples are averaged."""


@dataclass(frozen=True)
class Flips:
    """Examples that flipped, the largest changes first."""

    split: str
    positions: tuple[int, ...]
    """Policies that are shown: all, or the first ones and the last ones."""
    compared: int
    """Examples that every policy was scored on."""
    flipped: Mapping[Kind, int]
    """How many there are, by kind, shown or not."""
    shown: tuple[Flip, ...]
