"""DSPy's optimizers with the settings of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dspy

from schemas.recipe_prompts import PromptsSection

NEVER = 10**9
"""Failed runs before an optimizer gives up: a failure is a score of 0, and how many there were is told."""
FEW = 50
"""Up to so many validation examples, every trial of MIPROv2 scores on all: DSPy's own number."""


@dataclass(frozen=True)
class Task:
    """What an optimizer is given."""

    module: dspy.Module
    train: list[dspy.Example]
    validation: list[dspy.Example]
    metric: Callable[..., Any]
    student: dspy.LM
    proposer: dspy.LM
    adapter: Any
    """The program's DSPy adapter, if it names one."""
    seed: int
    threads: int


def optimize(task: Task, section: PromptsSection) -> dspy.Module:
    """The program with the prompts that the optimizer ends with. Works inside DSPy's context of the stage."""
    return {"mipro": _mipro, "gepa": _gepa, "bootstrap": _bootstrap}[section.optimizer](task, section)


def most_trials(section: PromptsSection, validation: int) -> int | None:
    """How many trials there will be; None where it is not known beforehand."""
    if section.optimizer == "gepa":
        return None
    if section.optimizer == "bootstrap":
        return 2
    if validation <= FEW:
        return 1 + section.trials
    wholes = section.trials // 5 + 1 + (section.trials % 5 != 0)
    return section.trials + wholes


def _mipro(task: Task, section: PromptsSection) -> dspy.Module:
    optimizer = dspy.MIPROv2(
        metric=task.metric,
        prompt_model=task.proposer,
        task_model=task.student,
        max_bootstrapped_demos=section.bootstrapped_demos,
        max_labeled_demos=section.labeled_demos,
        auto=None,  # what it stands for is given in numbers, which may then be changed one by one
        num_candidates=section.demo_candidates,
        num_threads=task.threads,
        max_errors=NEVER,
        seed=task.seed,
        metric_threshold=section.metric_threshold,
    )
    optimizer.num_instruct_candidates = section.instruction_candidates
    return optimizer.compile(
        task.module,
        trainset=task.train,
        valset=task.validation,
        num_trials=section.trials,
        minibatch=len(task.validation) > FEW,
        minibatch_size=min(section.minibatch, len(task.validation)),
    )


def _gepa(task: Task, section: PromptsSection) -> dspy.Module:
    from dspy.teleprompt.gepa import InstructionProposer

    optimizer = dspy.GEPA(
        metric=task.metric,
        auto=section.auto if section.metric_calls is None else None,
        max_metric_calls=section.metric_calls,
        reflection_lm=task.proposer,
        instruction_proposer=InstructionProposer(adapter=task.adapter),
        num_threads=task.threads,
        seed=task.seed,
    )
    return optimizer.compile(task.module, trainset=task.train, valset=task.validation)


def _bootstrap(task: Task, section: PromptsSection) -> dspy.Module:
    """BootstrapFewShot scores nothing itself: its demonstrations are kept unless the program does better without."""
    evaluate = dspy.Evaluate(
        devset=task.validation, metric=task.metric, num_threads=task.threads, max_errors=NEVER, display_progress=True
    )
    optimizer = dspy.BootstrapFewShot(
        metric=task.metric,
        metric_threshold=section.metric_threshold,
        max_bootstrapped_demos=section.bootstrapped_demos,
        max_labeled_demos=section.labeled_demos,
        max_errors=NEVER,
    )
    before = evaluate(task.module)
    compiled = optimizer.compile(task.module, trainset=task.train)
    after = evaluate(compiled)
    return compiled if after.score >= before.score else task.module
