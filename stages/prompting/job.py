"""One run of an optimizer: put together, served, and told."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dspy

from schemas.errors import MmgrpoError, StageError
from schemas.recipe import Recipe
from stages.contract import Out
from stages.programs.desk import session_figures
from stages.programs.dspy_engine import program_lm
from stages.programs.dspy_program import ALONE, state_of
from stages.programs.imports import describe
from stages.programs.load import Program
from stages.programs.session import Session
from stages.prompting.memory import Memory
from stages.prompting.optimizers import Task, most_trials, optimize
from stages.prompting.program import SERVICE, ProposerEngine, optimizable
from stages.prompting.scoring import Scorer, dspy_examples
from stages.prompting.service import Service
from stages.prompting.split import Split
from stages.prompting.trials import Trials, call_counts

TELL_S = 2.0
"""How often costs are written down while an optimizer works."""


@dataclass(frozen=True)
class Work:
    """What an optimizer works with."""

    recipe: Recipe
    program: Program
    split: Split
    session: Session
    memory: Memory
    seed: int
    threads: int


@dataclass(frozen=True)
class Found:
    """What it found: the frozen state as DSPy saves it, the rows of the trials table, and figures."""

    state: dict[str, Any]
    rows: list[dict[str, Any]]
    metrics: dict[str, Any]


def optimized(work: Work, out: Out, log: Path) -> Found:
    """Run the recipe's optimizer; what it says goes to the file `log`.

    Raises:
        RecipeError: for a program that is no DSPy module.
        StageError: when an LM or the optimizer failed, or the metric failed in every run.
    """
    section = work.recipe.prompts
    module = optimizable(work.program, work.recipe.program.factory)
    original = state_of(module)
    service = Service(work.session, work.memory, work.seed, section.proposer)
    trials = Trials(service, section.optimizer, dspy_examples(work.split.validation))
    job = _Job(work, out, service, trials)
    task = _task(work, module, service)
    try:
        with _said_to(log):
            best = service.drive(lambda: _in_context(task, service, trials, work), job.tick)
        trials.check()
    except MmgrpoError:
        raise
    except Exception as error:
        raise StageError(
            f'prompts.optimizer = "{section.optimizer}" failed with {describe(error)}. What LMs answered is kept; '
            f"its own account is in {log}."
        ) from error
    finally:
        job.tell(last=True)
    _refuse_failed_metric(service)
    state = state_of(best)
    return Found(state.get(ALONE, state), trials.rows, _metrics(work, service, trials, original, state))


def _task(work: Work, module: dspy.Module, service: Service) -> Task:
    proposer = dspy.LM("mmgrpo/proposer", engine=ProposerEngine(service), cache=False, num_retries=0)
    rows = [*work.split.train, *work.split.validation]
    return Task(
        module=module,
        train=dspy_examples(work.split.train),
        validation=dspy_examples(work.split.validation),
        metric=Scorer(work.program.metric, rows, service),
        student=program_lm(),
        proposer=proposer,
        adapter=work.program.adapter,
        seed=work.seed % 2**31 or 1,  # to MIPROv2, 0 means its own default
        threads=work.threads,
    )


def _in_context(task: Task, service: Service, trials: Trials, work: Work) -> dspy.Module:
    settings = {
        SERVICE: service,
        "lm": task.student,
        "adapter": task.adapter,
        "callbacks": [trials],
        "trace": [],
        "max_trace_size": 1000,
        "disable_history": True,
        "num_threads": task.threads,
    }
    with dspy.context(**settings):
        return optimize(task, work.recipe.prompts)


@dataclass
class _Job:
    """Tells how far the optimizer is, and what it costs."""

    work: Work
    out: Out
    service: Service
    trials: Trials
    counted: dict[str, float] = field(init=False)
    since: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.counted = session_figures(self.work.session)
        self.told = 0

    def tick(self) -> None:
        """As often as calls are served: what went wrong in a callback ends the work before more of it is paid for."""
        self.trials.check()
        self.tell()

    def tell(self, *, last: bool = False) -> None:
        done = len(self.trials.rows)
        most = most_trials(self.work.recipe.prompts, len(self.work.split.validation))
        if done != self.told:
            self.out.progress(done, max(done, most or 0), "trials", answers=float(len(self.work.memory)))
            self.told = done
        if last or time.monotonic() - self.since > TELL_S:
            self.since = time.monotonic()
            figures = session_figures(self.work.session)
            self.out.telemetry(**{name: value - self.counted.get(name, 0.0) for name, value in figures.items()})
            self.counted = figures


@contextlib.contextmanager
def _said_to(log: Path) -> Iterator[None]:
    """DSPy's optimizers print much, from many threads; it is kept apart from what this process says."""
    with log.open("a", encoding="utf-8") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield


def _refuse_failed_metric(service: Service) -> None:
    if set(service.statuses) - {"ok"} == {"metric_error"} and not service.statuses["ok"]:
        raise StageError(
            f"the metric failed in all {service.statuses['metric_error']} runs. One says: "
            f"{service.errors['metric_error']}. Mend that and run again; what LMs answered is kept."
        )


def _metrics(
    work: Work, service: Service, trials: Trials, original: dict[str, Any], state: dict[str, Any]
) -> dict[str, Any]:
    statuses = {name: count for name, count in sorted(service.statuses.items()) if count}
    first = [f"{name}: {service.errors[name]}" for name in statuses if name in service.errors]
    return {
        "optimizer": work.recipe.prompts.optimizer,
        "changed": state != original,
        "trials": len(trials.rows),
        "score_before": trials.best(original),
        "score": trials.best(state),
        "train_examples": len(work.split.train),
        "validation_examples": len(work.split.validation),
        "demos": {name: len(part["demos"]) for name, part in state.items()},
        "statuses": statuses,
        "first_error": first[0] if first else None,
        "demo_calls": call_counts(service, service.demos),
        "proposer_calls": call_counts(service, service.proposals),
        "metric_retries": service.metric_retries,
        "calls": _total(service, trials, "calls"),
        "new_calls": _total(service, trials, "new_calls"),
    }


def _total(service: Service, trials: Trials, name: str) -> int:
    own = [int(call_counts(service, tally)[name]) for tally in (service.demos, service.proposals)]
    return sum(own) + sum(int(row[name]) for row in trials.rows)
