"""The sections of the recipe for those that the student learns from: teachers, and its own best samples."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints, model_validator

from schemas.recipe_data import SamplingSection
from schemas.sections import Positive, Section

TeacherName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
"""Names a source (`teacher:NAME`) and files."""


class TeacherSection(Section):
    """One teacher, `[teachers.NAME]`: other prompts, another adapter or another LM, alone or together.

    With neither `adapter` nor `lm` it samples from the student's own policy, under its prompts.
    """

    rollouts: Positive
    """How many of the `rollout.rollouts` (G) of every example are this teacher's. The student makes what is left."""
    state: str | None = None
    """A saved state of the program (`program.save`), relative to the recipe: other instructions, other demos."""
    factory: str | None = None
    """Another program with the same modules, `package.module:function`. Default: `program.factory`."""
    args: dict[str, Any] | None = None
    """Arguments of the factory. Default: `program.args`."""
    adapter: str | None = None
    """A PEFT folder on the same base, relative to the recipe; it serves every module."""
    lm: str | None = None
    """The name of one of `[lms]`, which answers in the student's place."""
    sampling: SamplingSection | None = None
    """Default: `rollout.sampling`, or what `[lms]` says of the teacher's `lm`."""

    @property
    def own_program(self) -> bool:
        """Whether its prompts differ from the student's."""
        return not (self.state is None and self.factory is None and self.args is None)

    @model_validator(mode="after")
    def _teaches_something(self) -> TeacherSection:
        if not (self.own_program or self.adapter or self.lm):
            raise ValueError(
                "this teacher is the student itself: give it a `state` (or `factory`, `args`), an `adapter` or an `lm`"
            )
        if self.adapter and self.lm:
            raise ValueError("`adapter` and `lm` exclude each other: an adapter is sampled from on the student's base")
        return self


class RejectionSection(Section):
    """Rejection fine-tuning, `[rejection]`: the first iterations train on the best member of every group.

    As supervised fine-tuning (the mean negative log-likelihood) of the same group tables, with nothing compared and
    nothing corrected. With as many iterations as the run has it is the offline BetterTogether baseline.
    """

    iterations: int = Field(default=0, ge=0)
    """So many iterations from the start; 0: none. The ones behind them train as `[train]` says."""
    best: Positive = 1
    """How many members of a group are trained on, those of the highest reward; the first of equal ones."""
    threshold: float | None = None
    """Least reward of a member that is trained on. Default: anything above `group.failure_score`."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL to the reference in these iterations, instead of `train.beta`."""
