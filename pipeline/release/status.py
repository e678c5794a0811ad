"""`mmgrpo status`: what is released, what the newest policy is worth, what was decided, and what to do next."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.release.ledger import spent, whole
from pipeline.release.records import decisions
from pipeline.release.standing import Standing, history
from pipeline.release.words import line_of
from pipeline.reporting.opened import OpenRun, open_run
from pipeline.tainted import read_tainted
from schemas.decisions import Decision
from stages.engines.adapters import read_adapters
from stages.statistics import alpha_of

SHOWN = 5
"""Decisions listed."""


@dataclass(frozen=True)
class Status:
    """A run's releases at a glance."""

    run: str
    released: str | None
    """The policy; None while the run has none."""
    released_by: int | None
    """Number of the decision; None for the base that a run starts with."""
    released_since: str | None
    adapters: dict[str, str]
    """Folders of the released adapters by name, from the run folder on; empty for the base."""
    newest: str | None
    iterations: int
    """Trained so far."""
    ended: str | None
    decisions: int
    last: tuple[str, ...]
    """The last decisions in words, newest first."""
    ledger: str
    looks: int
    alpha: float
    spent: float
    left: float
    next_alpha: float
    """What the next look may spend."""
    tests_opened: int
    next: tuple[str, ...]
    """What to do."""

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)


def status(folder: Path) -> Status:
    """Look at a run.

    Raises:
        DataError: when it is no run folder, or its records were changed, or its ledger is not whole.
    """
    run, made = open_run(folder), decisions(folder)
    taken = whole(folder, run.recipe, made)
    alpha, used = run.recipe.gate.alpha, spent(taken)
    policies = run.state.policies
    now = history(policies[0], made)[-1] if policies else None
    return Status(
        run=str(folder),
        released=now.policy if now else None,
        released_by=now.decision.number if now and now.decision else None,
        released_since=now.decision.at if now and now.decision else None,
        adapters=_adapters(run, now),
        newest=policies[-1] if policies else None,
        iterations=max(0, len(policies) - 1),
        ended=run.state.ended,
        decisions=len(made),
        last=tuple(f"{item.number}. {line_of(item)}" for item in made[: -SHOWN - 1 : -1]),
        ledger=run.recipe.gate.ledger,
        looks=len(taken),
        alpha=alpha,
        spent=used,
        left=max(0.0, alpha - used),
        next_alpha=max(0.0, min(alpha_of(len(taken) + 1, alpha), alpha - used)),
        tests_opened=run.state.tests_opened,
        next=tuple(_next(run, now, made)),
    )


def render(found: Status) -> str:
    """As text."""
    lines = [f"released   {_released(found)}"]
    lines += [f"           {name}: {path}" for name, path in found.adapters.items()]
    newest = "none yet" if found.newest is None else f"policy {found.newest[:12]}, {found.iterations} iteration(s)"
    lines.append(f"newest     {newest}{f'; the run ended early: {found.ended}' if found.ended else ''}")
    lines.append(
        f"looks      {found.looks} in {found.ledger}; alpha {found.alpha:g}: spent {found.spent:.4f}, left "
        f"{found.left:.4f}, the next look {found.next_alpha:.2g}"
    )
    lines.append(f"test       opened {found.tests_opened} time(s)")
    lines.append(f"decisions  {found.decisions}" + (", newest first" if len(found.last) > 1 else ""))
    lines += [f"           {line}" for line in found.last]
    lines += [f"{'next' if index == 0 else '':<10} {line}" for index, line in enumerate(found.next)]
    return "\n".join(lines)


def _released(found: Status) -> str:
    if found.released is None:
        return "nothing: the run has no policy yet"
    if found.released_by is None:
        return f"the base, policy {found.released[:12]}, as at the start"
    what = f"policy {found.released[:12]}" if found.adapters else f"the base, policy {found.released[:12]}"
    return f"{what}, by decision {found.released_by} of {found.released_since}"


def _adapters(run: OpenRun, now: Standing | None) -> dict[str, str]:
    trained = run.store.find("train", now.adapter) if now is not None and now.adapter else None
    if trained is None:
        return {}
    return {name: path.relative_to(run.folder).as_posix() for name, path in read_adapters(trained.path).folders.items()}


def _next(run: OpenRun, now: Standing | None, made: list[Decision]) -> list[str]:
    """What to do, the most urgent first."""
    folder, policies = run.folder, run.state.policies
    if now is None or len(policies) < 2:
        return ["`mmgrpo run RECIPE` trains"]
    steps: list[str] = []
    tainted = read_tainted(folder)
    if tainted and now.policy in tainted.policies:
        steps.append(
            f"`mmgrpo rollback {folder}`: what is released learnt from traces that were to be forgotten ({tainted.at})"
        )
    about = [item for item in made if item.policy == policies[-1]]
    if policies[-1] not in run.state.evaluations.get(run.recipe.examples.dev, {}):
        steps.append("`mmgrpo run RECIPE`, with run.evaluate_every: the newest policy is not scored")
    elif now.policy == policies[-1]:
        steps.append(f"`mmgrpo export adapter {folder} FOLDER`, or train on: the newest policy is released")
    elif not about:
        steps.append("`mmgrpo run RECIPE`: the gate has not looked at the newest policy yet")
    elif (evidence := about[-1].evidence) is not None and not evidence.improved:
        steps.append("train on, or score more examples: the newest policy is not shown to be better than the released")
    elif evidence is not None and not evidence.passed:
        steps.append("the newest policy is better, but was held back: see its decision")
    elif evidence is None and about[-1].kind == "gate":
        steps.append("the newest policy was not compared with the released: its decision says what to mend")
    else:
        steps.append(f"`mmgrpo release {folder} --reason TEXT` releases the newest policy, if it should be")
    return steps
