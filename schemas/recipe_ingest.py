"""The ingest section of the recipe: how logged traces are read as rollouts of this program."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from schemas.recipe_redact import RedactSection
from schemas.sections import Pattern, Section, Share, VariableName


class ModuleRule(Section):
    """Which calls are those of a module. All that a rule names must hold."""

    module: str
    """The module of the program, as its rollouts call it."""
    span: Pattern | None = None
    """Matches the whole name of the call's span or of one above it."""
    agent: Pattern | None = None
    """Matches the whole name of the nearest agent, graph node or function id."""
    signature: Pattern | None = None
    """Matches the whole DSPy signature of the nearest predictor, as it was logged."""
    system: Pattern | None = None
    """Found in the system prompt."""

    @model_validator(mode="after")
    def _says_something(self) -> ModuleRule:
        if not (self.span or self.agent or self.signature or self.system):
            raise ValueError(f"the rule for module '{self.module}' needs one of span, agent, signature and system")
        return self


class IngestSection(Section):
    """How traces become rollouts. What a log does not say is null or left out with a reason, never guessed."""

    modules: tuple[ModuleRule, ...] = ()
    """Which calls are whose, where spans do not carry `mmgrpo.module`. A call that rules give to two modules, or
    nothing gives to one, is left out; `mmgrpo ingest --suggest-modules` proposes rules."""
    names: Literal["agents", "rules"] = "agents"
    """`agents`: a call that no rule knows is that of the nearest agent, graph node or function id, by its name."""
    inputs: dict[str, str] = {}
    """Where an input of the program stands in the root's input, by dotted path: `question = "messages.0.content"`.
    Default: under its own name, or the whole input where the program has one input and the log a text."""
    reward: str | dict[str, float] | None = None
    """The name of the score that is the reward, or weights of several. Default: the only one that traces have."""
    repeated: Literal["refuse", "mean"] = "refuse"
    """Several values of one score of a trace, as of several people: no reward unless equal, or their mean."""
    dev: Share = 0.0
    """Share of the examples that become the dev split, by a hash of each."""
    key_env: VariableName | None = None
    """Environment variable of a secret that example ids are keyed with, so that they do not give an input away to
    whoever guesses it. Equal inputs keep equal ids under one secret; those of the rollout stage are not keyed."""
    redact: RedactSection = RedactSection()
    """What is replaced by pseudonyms before anything is written. Users' keys are then kept under the secret of
    `key_env` only, and dropped without one."""


class TracesSection(Section):
    """Logged rollouts that are trained on beside the run's own."""

    snapshot: str | None = None
    """A snapshot's folder, relative to the recipe, as `mmgrpo ingest` names it."""
    iterations: int = Field(default=1, ge=1)
    """The first so many iterations group its rollouts with their own, by example, module and position."""
