"""The batch plan: which groups make which optimizer step. A pure function of groups, seed and epoch.

Change from GRPO/TRL: TRL steps over rows drawn by a sampler; here one step is all groups of `examples_per_step` whole
examples, whatever the micro-batches, and the last step of an epoch takes what is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.canonical import seed_from
from stages.training.members import Members


@dataclass(frozen=True)
class PlannedStep:
    """One optimizer step of this stage."""

    step: int
    epoch: int
    groups: tuple[tuple[str, str], ...]
    """(example_id, group_id), in order."""


def make_plan(groups: dict[str, str], *, seed: int, epochs: int, examples_per_step: int) -> list[PlannedStep]:
    """Every group exactly once an epoch.

    Args:
        groups: group_id -> example_id, in any order.
        seed: of the run and iteration. Examples are ordered by a hash of (seed, epoch, example_id), so that neither
            the order nor the presence of other examples moves one relative to another.
        epochs: passes over the groups.
        examples_per_step: whole examples in a step.
    """
    by_example: dict[str, list[str]] = {}
    for group, example in sorted(groups.items()):
        by_example.setdefault(example, []).append(group)
    plan: list[PlannedStep] = []
    for epoch in range(epochs):
        order = sorted(by_example, key=lambda example: (seed_from("batch-plan", seed, epoch, example), example))
        for start in range(0, len(order), examples_per_step):
            chosen = order[start : start + examples_per_step]
            pairs = tuple((example, group) for example in chosen for group in by_example[example])
            plan.append(PlannedStep(len(plan), epoch, pairs))
    return plan


def plan_rows(plan: list[PlannedStep]) -> list[dict[str, Any]]:
    """The plan as rows of the batch_plan table."""
    return [
        {"step": step.step, "epoch": step.epoch, "position": position, "example_id": example, "group_id": group}
        for step in plan
        for position, (example, group) in enumerate(step.groups)
    ]


def members_of(step: PlannedStep, members: Members) -> list[int]:
    """Indices of a step's members, in the order of the plan and, within a group, of the member table."""
    by_group: dict[str, list[int]] = {group: [] for _, group in step.groups}
    for index, group in enumerate(members.group.tolist()):
        if group in by_group:
            by_group[group].append(index)
    return [index for _, group in step.groups for index in by_group[group]]
