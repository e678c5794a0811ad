"""The adapters of a stage, trained one after another, and the files that they make together.

Change from GRPO/TRL: a step of the batch plan is taken by every adapter that has members in it, and each moves by its
own modules' members as if it were trained alone: its own mean loss, clipped gradient, Adam moments and early end. So
each adapter is one run of TRL's trainer. What has no members to train on keeps its bytes.
"""

from __future__ import annotations

import gc
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from schemas.canonical import canonical_json
from schemas.errors import StageError
from schemas.execution import Execution
from schemas.parquet import write_table
from schemas.policies import SHARED
from schemas.recipe import Recipe
from schemas.training import AGES, MODULES, STEPS
from stages.contract import Out
from stages.engines.adapters import INDEX, SEVERAL_FOLDER, SHARED_FOLDER, SHARED_NAME, read_adapters
from stages.engines.models import BaseModel
from stages.training.baselines import PolicyScores
from stages.training.fit import Job, Outcome, Trained, fit
from stages.training.members import Members
from stages.training.naming import adapter_names, check_unchanged
from stages.training.objective import Objective, why_nothing
from stages.training.plan import PlannedStep
from stages.training.world import World

_MEANS = (
    "loss",
    "reward",
    "kl_old",
    "kl_ref",
    "entropy",
    "clip_share",
    "ess",
    "mismatch_ess",
    "mismatch_mean",
    "rho_cut",
    "grad_norm",
)
_SUMS = ("row_tokens", "forward_tokens", "completion_tokens")


@dataclass(frozen=True)
class Work:
    """What a train stage works on."""

    recipe: Recipe
    execution: Execution
    objective: Objective
    base: BaseModel
    previous: Path | None
    """The folder of the train artifact to continue."""
    iteration: int
    members: Members
    plan: list[PlannedStep]
    done_before: int
    """Steps of the run before this stage."""
    scores: PolicyScores


@dataclass(frozen=True)
class Turn:
    """One adapter's turn: what it trains on, and what came of it."""

    name: str
    modules: tuple[str, ...]
    members: Members
    plan: list[PlannedStep]
    """The steps that have members of it."""
    done: Path
    """Folder of what it wrote; there once it has been trained to its end."""
    outcome: Outcome
    reason: str | None
    """Why it was not trained."""

    @property
    def figures(self) -> dict[str, Any]:
        """What the manifest says of it."""
        groups = len(set(self.members.group.tolist()))
        about = {"modules": list(self.modules), "members": self.members.units, "groups": groups, "reason": self.reason}
        return about | {"ended_early": self.outcome.ended_early} | summarised(self.outcome.rows)


def train_in_turn(work: Work, folder: Path, out: Out, world: World) -> dict[str, Any]:
    """Train every adapter that has members, and write all that there are into an empty folder.

    One shared: adapter/, optimizer.safetensors. Several: adapters/NAME/, adapters/modules.json (name by module) and
    optimizers/NAME.safetensors. In both cases optimizer.json, steps.parquet, ages.parquet and modules.parquet. With no
    step taken: nothing.

    Returns:
        Metrics of all steps together, and under `adapters` those of each adapter.
    """
    names = _names(work)
    turns = [_turn(work, name, names, out, world) for name in sorted(set(names.values()))]
    rows = sorted((row for turn in turns for row in turn.outcome.rows), key=lambda row: (row["step"], row["adapter"]))
    if rows and world.leads:
        _write_adapters(work, names, turns, folder)
        (folder / "optimizer.json").write_text(canonical_json({"optimizer": "adamw", "run_steps": _clock(work, turns)}))
        write_steps(rows, folder)
    return _metrics(turns, rows)


def write_steps(rows: list[dict[str, Any]], folder: Path) -> None:
    """The tables of the steps taken: steps.parquet, ages.parquet and modules.parquet."""
    nested = {"ages": AGES, "modules": MODULES}
    for name, spec in nested.items():
        parts = [{"step": row["step"], "adapter": row["adapter"], **part} for row in rows for part in row[name]]
        write_table(parts, folder / f"{name}.parquet", spec)
    flat = [{name: value for name, value in row.items() if name not in nested} for row in rows]
    write_table(flat, folder / "steps.parquet", STEPS)


def read_clock(previous: Path) -> int:
    """Steps of the run that a train artifact ended at."""
    about = json.loads((previous / "optimizer.json").read_text())
    return int(about["run_steps"])


def trained_in(artifact: Path) -> dict[str, Trained]:
    """The adapters of a train artifact by name, with what is needed to go on with them."""
    found = read_adapters(artifact)
    if SHARED in found.names:
        return {SHARED_NAME: Trained(found.folders[SHARED_NAME], artifact / "optimizer.safetensors")}
    return {
        name: Trained(folder, artifact / "optimizers" / f"{name}.safetensors") for name, folder in found.folders.items()
    }


def _names(work: Work) -> dict[str, str]:
    """Adapter name by module, of all modules that there is something of; what the previous artifact has must agree."""
    modules = set(work.members.module.tolist())
    if work.previous is None:
        return adapter_names(work.recipe.adapter.modules, modules)
    before = read_adapters(work.previous).names
    names = adapter_names(work.recipe.adapter.modules, modules | (before.keys() - {SHARED}))
    check_unchanged(before, names, str(work.previous))
    return names


def _turn(work: Work, name: str, names: dict[str, str], out: Out, world: World) -> Turn:
    """Train one adapter, or read what an earlier try of this stage trained. Only process 0 needs what came of it."""
    modules = tuple(sorted(module for module in names if names[module] == name))
    members = work.members if modules == (SHARED,) else work.members.of_modules(modules)
    mine = set(members.group.tolist())
    plan = [step for step in work.plan if any(group in mine for _, group in step.groups)]
    scratch = out.scratch / "turns" / name
    done = scratch / "done"
    reason = why_nothing(members, work.recipe.train.beta)
    if reason:
        return Turn(name, modules, members, plan, done, Outcome([], "", None), reason)
    known = world.agree(done.exists())
    draft = scratch / "draft"
    if world.leads and not known:
        shutil.rmtree(draft, ignore_errors=True)
        scratch.mkdir(parents=True, exist_ok=True)
    if not known:
        outcome = _fit(_job(work, name, members, plan, scratch), draft, out, world)
    if not world.leads:
        return Turn(name, modules, members, plan, done, Outcome([], "", None), None)
    if not known:
        (draft / "outcome.json").write_text(json.dumps(vars(outcome)))
        draft.rename(done)
    kept = json.loads((done / "outcome.json").read_text())
    return Turn(name, modules, members, plan, done, Outcome(**kept), None)


def _job(work: Work, name: str, members: Members, plan: list[PlannedStep], scratch: Path) -> Job:
    previous = {} if work.previous is None else trained_in(work.previous)
    baselines = work.scores.baselines(members.rows, work.recipe, steps=len(plan), fresh=name not in previous)
    return Job(
        recipe=work.recipe,
        execution=work.execution,
        objective=work.objective,
        base=work.base,
        adapter=name,
        previous=previous.get(name),
        iteration=work.iteration,
        members=members,
        baselines=baselines,
        plan=plan,
        done_before=work.done_before,
        scratch=scratch,
    )


def _fit(job: Job, draft: Path, out: Out, world: World) -> Outcome:
    try:
        return fit(job, draft, out, world)
    except StageError as error:
        if job.adapter == SHARED_NAME:
            raise
        raise StageError(f"adapter '{job.adapter}': {error}") from error
    finally:
        gc.collect()  # a trainer is full of cycles, and the next adapter's model needs the room
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _write_adapters(work: Work, names: dict[str, str], turns: list[Turn], folder: Path) -> None:
    """Put what was trained beside what is carried over, byte for byte. What never had members is not there."""
    there = {} if work.previous is None else trained_in(work.previous)
    for turn in turns:
        if turn.outcome.rows:
            there[turn.name] = Trained(turn.done / "adapter", turn.done / "optimizer.safetensors")
    if SHARED in names:
        _copy(there[SHARED_NAME], folder / SHARED_FOLDER, folder / "optimizer.safetensors")
        return
    (folder / "optimizers").mkdir()
    for name, trained in sorted(there.items()):
        _copy(trained, folder / SEVERAL_FOLDER / name, folder / "optimizers" / f"{name}.safetensors")
    index = {module: name for module, name in names.items() if name in there}
    (folder / SEVERAL_FOLDER / INDEX).write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")


def _copy(trained: Trained, adapter: Path, optimizer: Path) -> None:
    shutil.copytree(trained.adapter, adapter, copy_function=shutil.copyfile)
    shutil.copyfile(trained.optimizer, optimizer)


def _clock(work: Work, turns: list[Turn]) -> int:
    """Where the run's count of steps goes on: behind the plan, or where the last adapter ended when all ended early."""
    trained = [turn for turn in turns if turn.reason is None]
    if any(turn.outcome.ended_early is None for turn in trained):
        return work.done_before + len(work.plan)
    return work.done_before + max(turn.plan[len(turn.outcome.rows)].step for turn in trained)


def _metrics(turns: list[Turn], rows: list[dict[str, Any]]) -> dict[str, Any]:
    trained = [turn for turn in turns if turn.reason is None]
    alone = len(turns) == 1
    ends = [
        turn.outcome.ended_early if alone else f"adapter '{turn.name}': {turn.outcome.ended_early}"
        for turn in trained
        if turn.outcome.ended_early is not None
    ]
    return {
        "path": trained[0].outcome.path if trained else None,
        "ended_early": "; ".join(ends) or None,
        **summarised(rows),
        "adapters": {turn.name: turn.figures for turn in turns},
    }


def summarised(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the rows of the steps table, for the manifest."""
    summary: dict[str, Any] = {"steps": len({row["step"] for row in rows})}
    for name in _MEANS:
        values = [row[name] for row in rows if row.get(name) is not None]
        summary[name] = sum(values) / len(values) if values else None
    for name in _SUMS:
        summary[name] = sum(row[name] for row in rows)
    return summary
