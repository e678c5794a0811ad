"""The recipe: everything that decides a result. Frozen, unknown keys refused, one section a stage.

Defaults are the `paper` preset: what the mmGRPO paper (arXiv 2508.04660) trains with. `preset = "unbiased"` changes
the fields listed in `PRESETS`. A field that the recipe sets wins over its preset. The sections lie in
`recipe_data.py`, `recipe_gate.py`, `recipe_prompts.py`, `recipe_teachers.py` and `recipe_training.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from schemas.recipe_data import (
    EvaluateSection,
    ExamplesSection,
    GroupSection,
    MetricSection,
    ModelSection,
    OtherLM,
    ProgramSection,
    RolloutSection,
)
from schemas.recipe_drift import CanariesSection, DriftSection
from schemas.recipe_gate import GateSection
from schemas.recipe_ingest import IngestSection, TracesSection
from schemas.recipe_prices import PricesSection
from schemas.recipe_prompts import PromptsSection
from schemas.recipe_teachers import RejectionSection, TeacherName, TeacherSection
from schemas.recipe_training import AdapterSection, TrainSection
from schemas.sections import Section

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "unbiased": {
        "group": {"pad": "ragged", "select": "all", "baseline": "leave_one_rollout_out"},
        "train": {"balance": "token"},
    },
}


class RunSection(Section):
    """The loop."""

    iterations: int = Field(default=1, ge=0)
    """0 trains nothing: the base, with its prompts, is scored."""
    evaluate_every: int = Field(default=1, ge=0)
    """Score the dev split after every so many iterations, and at the start and at the end; 0: never."""
    when_nothing_to_train: Literal["continue", "stop"] = "continue"
    """All groups flat or every rollout failed: keep the policy and go on, or end the run there, as a success."""
    replay: int = Field(default=0, ge=0)
    """Earlier iterations whose rollouts are grouped and trained on again, beside the iteration's own. They join the
    groups of the same example, module and position; rho corrects for the policies that sampled them. Not more than
    `group.staleness`, beyond which the group stage leaves rollouts out. One more step of an iteration for every
    `train.examples_per_step` examples that are replayed. `group.key_columns = ["adapter"]` keeps the policies apart."""


class Recipe(Section):
    """A whole recipe. Two runs with equal recipes and equal inputs have equal keys."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
    seed: int = Field(default=0, ge=0, lt=2**31)
    preset: Literal["paper", "unbiased"] = "paper"
    model: ModelSection
    program: ProgramSection
    metric: MetricSection = MetricSection()
    lms: dict[str, OtherLM] = {}
    examples: ExamplesSection
    ingest: IngestSection = IngestSection()
    traces: TracesSection = TracesSection()
    prompts: PromptsSection = PromptsSection()
    rollout: RolloutSection = RolloutSection()
    teachers: dict[TeacherName, TeacherSection] = {}
    group: GroupSection = GroupSection()
    adapter: AdapterSection = AdapterSection()
    train: TrainSection = TrainSection()
    rejection: RejectionSection = RejectionSection()
    evaluate: EvaluateSection = EvaluateSection()
    gate: GateSection = GateSection()
    drift: DriftSection = DriftSection()
    canaries: CanariesSection = CanariesSection()
    run: RunSection = RunSection()
    prices: PricesSection = PricesSection()

    @property
    def student_rollouts(self) -> int:
        """Rollouts of an example that the student makes: what its teachers leave of G."""
        return self.rollout.rollouts - sum(teacher.rollouts for teacher in self.teachers.values())

    @model_validator(mode="after")
    def _replay_is_not_stale(self) -> Recipe:
        if self.run.replay > self.group.staleness:
            raise ValueError(
                f"run.replay is {self.run.replay}, but group.staleness ({self.group.staleness}) leaves rollouts of "
                "older policies out: raise group.staleness to the same number"
            )
        return self

    @model_validator(mode="after")
    def _no_lm_is_called_student(self) -> Recipe:
        if "student" in self.lms:
            raise ValueError("lms.student: 'student' is the model being trained; choose another name")
        return self

    @model_validator(mode="after")
    def _teachers_leave_a_baseline(self) -> Recipe:
        if self.teachers and self.student_rollouts < self.group.min_group:
            every = self.rollout.rollouts
            raise ValueError(
                f"teachers make {every - self.student_rollouts} of the {every} rollouts of an example "
                f"(rollout.rollouts), which leaves the student {self.student_rollouts}, fewer than "
                f"group.min_group ({self.group.min_group}): baselines are the student's. Raise rollout.rollouts"
            )
        return self

    @model_validator(mode="after")
    def _teachers_have_their_lms(self) -> Recipe:
        for name, teacher in self.teachers.items():
            if teacher.lm is None:
                continue
            if teacher.lm not in self.lms:
                known = ", ".join(sorted(self.lms)) or "none"
                raise ValueError(f"teachers.{name}.lm is '{teacher.lm}', but [lms] has {known}")
            if self.lms[teacher.lm].kind == "openai" and teacher.sampling and teacher.sampling.top_k is not None:
                raise ValueError(f"teachers.{name}.sampling.top_k: OpenAI-compatible endpoints have no top_k")
        return self

    @model_validator(mode="after")
    def _prices_are_of_lms_that_are_there(self) -> Recipe:
        known = ["student", *sorted(self.lms)]
        for name in self.prices.lms:
            if name not in known:
                raise ValueError(f"prices.lms.{name}: there is no LM '{name}'; there are {', '.join(known)}")
        return self

    @model_validator(mode="after")
    def _the_judge_is_there(self) -> Recipe:
        judge = self.metric.lm
        if judge == "student":
            raise ValueError("metric.lm: the student judges no run of its own; name an LM of [lms]")
        if judge is not None and judge not in self.lms:
            known = ", ".join(sorted(self.lms)) or "none"
            raise ValueError(f"metric.lm is '{judge}', but [lms] has {known}")
        return self

    @model_validator(mode="after")
    def _drift_is_measured_where_it_is_limited(self) -> Recipe:
        if (limits := self.drift.set_ones) and not self.evaluate.drift:
            raise ValueError(f"drift.{limits[0]} is set, but evaluate.drift is off: nothing would measure it")
        if (limits := self.drift.of_canaries) and self.canaries.path is None:
            raise ValueError(f"drift.{limits[0]} needs canaries: set canaries.path")
        return self

    @model_validator(mode="after")
    def _the_proposer_is_known(self) -> Recipe:
        name = self.prompts.proposer
        if name is not None and name != "student" and name not in self.lms:
            raise ValueError(
                f"prompts.proposer: there is no LM '{name}'; add [lms.{name}], or name one of {sorted(self.lms)}"
            )
        return self


def with_preset(document: dict[str, Any]) -> dict[str, Any]:
    """A recipe document laid over the fields of its preset."""
    return merge(PRESETS.get(str(document.get("preset", "paper")), {}), document)


def merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Deep merge of two documents; `over` wins, tables are merged key by key."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
