"""The prompts section of the recipe: prompts that are optimized, and then frozen, before the weights are trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from schemas.recipe_data import GreedySection
from schemas.sections import Positive, Section


class PromptsSection(Section):
    """Which of DSPy's optimizers makes the prompts, on which train examples, and when.

    The defaults of `mipro` are the mmGRPO paper's: 12 trials over 12 sets of demonstrations and 6 instructions, with
    80 % of the train split for validation.
    """

    optimizer: Literal["none", "mipro", "gepa", "bootstrap"] = "none"
    """`none`: the program's own prompts. `mipro`: MIPROv2, instructions and demonstrations. `gepa`: GEPA,
    instructions by reflection. `bootstrap`: BootstrapFewShot, demonstrations."""
    every: Positive | None = None
    """Make new prompts before iterations k, 2k, … too, with the adapter of then. Default: once, before iteration 0."""
    examples: Positive | None = Field(default=None, ge=2)
    """Use only so many examples of the train split, drawn by the seed; default: all."""
    validation: float = Field(default=0.8, gt=0, lt=1)
    """Share of those examples that candidates are scored on. Demonstrations come from the others."""
    auto: Literal["light", "medium", "heavy"] = "medium"
    """How many validation examples `mipro` scores on at most (100, 300, 1000), and the budget of `gepa`."""
    trials: Positive = 12
    """Combinations of instructions and demonstrations that `mipro` tries."""
    demo_candidates: int = Field(default=12, ge=3)
    """Sets of demonstrations that `mipro` chooses from, of each module; the first has none."""
    instruction_candidates: Positive = 6
    """Instructions that `mipro` chooses from, of each module; the first is the program's own."""
    minibatch: Positive = 35
    """Validation examples of a trial of `mipro` where there are more than 50; the best are then scored on all."""
    bootstrapped_demos: int = Field(default=4, ge=0)
    """Most demonstrations of a module that come from runs of the program (`mipro`, `bootstrap`)."""
    labeled_demos: int = Field(default=4, ge=0)
    """Most demonstrations of a module, bootstrapped ones included, that labels of examples are added up to."""
    metric_threshold: float | None = None
    """Score from which on a run may become a demonstration; default: any score but 0."""
    metric_calls: Positive | None = None
    """Program runs that `gepa` may score; default: by `auto`."""
    proposer: str | None = None
    """The LM that writes instructions, as `[lms]` names it; default: the student with the policy of the moment."""
    sampling: GreedySection = GreedySection()
    """How the student is sampled while the optimizer runs the program. DSPy itself sets the proposals' temperature."""
    parse_retries: int = Field(default=3, ge=0)

    @property
    def on(self) -> bool:
        """Whether there is anything to do."""
        return self.optimizer != "none"

    def due(self, iteration: int) -> bool:
        """Whether new prompts are made right before an iteration."""
        if not self.on or iteration == 0:
            return self.on
        return self.every is not None and iteration % self.every == 0

    @model_validator(mode="after")
    def _has_an_optimizer(self) -> PromptsSection:
        if self.every is not None and not self.on:
            raise ValueError("`every` needs an `optimizer`: mipro, gepa or bootstrap")
        return self

    @model_validator(mode="after")
    def _mipro_runs_for_its_demos(self) -> PromptsSection:
        if self.optimizer == "mipro" and self.labeled_demos and not self.bootstrapped_demos:
            raise ValueError(
                "optimizer 'mipro' adds labeled demonstrations to bootstrapped ones only: set bootstrapped_demos, or "
                "labeled_demos = 0 for instructions alone"
            )
        return self

    @model_validator(mode="after")
    def _bootstrap_makes_demos(self) -> PromptsSection:
        if self.optimizer == "bootstrap" and not self.bootstrapped_demos + self.labeled_demos:
            raise ValueError("optimizer 'bootstrap' makes demonstrations: set bootstrapped_demos or labeled_demos")
        return self
