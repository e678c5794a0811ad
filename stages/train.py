"""The train stage: group members and the tokens of their invocations in, LoRA adapters out.

What it changes from GRPO as TRL has it: groups come ready-made from tables and nothing is generated; one optimizer
step is all groups of whole examples; the policy that sampled the data corrects the advantages (rho) instead of being
clipped against; shared prompts are computed once. The loss itself is TRL's: see `stages/training/trainer.py`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.canonical import canonical_json, seed_from
from schemas.errors import RecipeError
from schemas.execution import Execution
from schemas.parquet import read_rows, write_table
from schemas.policies import POLICIES, policy_digest
from schemas.recipe import Recipe
from schemas.training import BATCH_PLAN, TRAINED
from stages.contract import Inputs, Out
from stages.training.build import checked_base
from stages.training.files import invocation_files, logprob_files
from stages.training.members import Members, load_members, trained_rows
from stages.training.plan import make_plan, plan_rows

if TYPE_CHECKING:
    from stages.training.objective import Objective
    from stages.training.plan import PlannedStep
    from stages.training.turns import Work
    from stages.training.world import World

NAME = "train"
VERSION = 4


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """What decides the adapter, beside the input artifacts."""
    return {
        "seed": recipe.seed,
        "model": {"base": Path(recipe.model.base).name, "dtype": recipe.model.dtype},
        "adapter": recipe.adapter.model_dump(mode="json"),
        "train": recipe.train.model_dump(mode="json"),
        "group": {"unit": recipe.group.unit},
        "rollout": {"sampling": {"max_new_tokens": recipe.rollout.sampling.max_new_tokens}},
    }


def run(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
    """Write batch_plan, trained, steps and policies.parquet, optimizer.json, and adapters with their optimizers.

    One shared adapter: adapter/ and optimizer.safetensors. Several: adapters/NAME/, adapters/modules.json (name by
    module) and optimizers/NAME.safetensors; an adapter whose modules taught nothing this time is carried over byte for
    byte, and one whose modules never did is not there.

    Params: `iteration`, and `rejection` where it is one of rejection fine-tuning. Artifacts: `base`, `group`, `rollout`
    and every `rollout.NAME` that the groups were made of, `logprobs.NAME` of the policies that are needed, and
    `previous`, the last train artifact that has an adapter. Where nothing is to be learned only policies.parquet is
    written, unchanged, and `trained` is false.

    Raises:
        RecipeError: for an objective or adapter that is not supported.
        DataError: for members without usable tokens, or a previous adapter that does not fit.
        StageError: for a loss that is not finite, or data too far from the policy.
    """
    from stages.training.objective import objective_of
    from stages.training.rejection import as_rejection, rejection_objective
    from stages.training.world import joined

    rejecting = "rejection" in inputs.params
    objective = rejection_objective(recipe) if rejecting else objective_of(recipe)
    recipe = as_rejection(recipe) if rejecting else recipe
    members, reason = admitted(inputs, recipe, execution, out)
    with joined() as world:
        if world.size > 1 and recipe.train.module_norms:
            raise RecipeError("train.module_norms goes with one process: launch one, or set train.module_norms = false")
        if world.leads and reason:
            return _untrained(inputs, out, reason)
        if not reason:
            _train(inputs, recipe, execution, out, objective=objective, members=members, world=world)
    if not world.leads:
        return {}
    outcome = out.scratch / "outcome"
    metrics: dict[str, Any] = json.loads((outcome / "metrics.json").read_text())
    if not metrics["trained"]:
        out.drop("batch_plan.parquet")
        return _untrained(inputs, out, metrics["reason"])
    for file in sorted(path for path in outcome.rglob("*") if path.is_file() and path.name != "metrics.json"):
        out.commit_shard(file.relative_to(outcome).as_posix(), file)
    return metrics


def _train(
    inputs: Inputs,
    recipe: Recipe,
    execution: Execution,
    out: Out,
    *,
    objective: Objective,
    members: Members,
    world: World,
) -> None:
    """Put what is trained into the scratch folder `outcome`, unless an earlier try has done so."""
    from stages.training.behaviour import about
    from stages.training.turns import train_in_turn

    plan = _plan(inputs, recipe, members, out if world.leads else None)
    outcome = out.scratch / "outcome"
    if world.agree(outcome.exists()):
        return
    draft = out.scratch / "outcome.partial"
    if world.leads:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
    work = _work(inputs, recipe, execution, objective=objective, members=members, plan=plan)
    groups = len(set(members.group.tolist()))
    figures = train_in_turn(work, draft, out, world) | {"members": members.units, "groups": groups}
    figures |= about(members, recipe, _archived(inputs))
    if world.leads:
        write_table(trained_rows(members), draft / "trained.parquet", TRAINED)
        _finish(inputs, draft, figures)
        draft.rename(outcome)  # from here on a restart has only to move files


def admitted(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> tuple[Members, str | None]:
    """The members that are trained on, those left out counted in `out`; and why nothing can be learned of them."""
    from stages.training.objective import why_nothing
    from stages.training.rejection import as_rejection, why_none

    rejecting = "rejection" in inputs.params
    recipe = as_rejection(recipe) if rejecting else recipe
    members = _members(inputs, recipe, execution, out)
    reason = why_nothing(members, recipe.train.beta)
    return members, why_none(recipe) if rejecting and reason else reason


def planned(inputs: Inputs, recipe: Recipe, members: Members) -> list[PlannedStep]:
    """Which groups make which step: decided by the groups, the recipe and the iteration alone."""
    return make_plan(
        dict(zip(members.group.tolist(), members.example.tolist(), strict=True)),
        seed=seed_from("train", recipe.seed, int(inputs.params["iteration"])),
        epochs=recipe.train.epochs,
        examples_per_step=recipe.train.examples_per_step,
    )


def _members(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> Members:
    from stages.engines.models import load_tokenizer
    from stages.training.behaviour import admit
    from stages.training.decoding import as_seen
    from stages.training.rejection import best_of_groups

    groups = inputs["group"].file("groups.parquet")
    rejecting = "rejection" in inputs.params
    members, left_out = load_members(
        groups,
        invocation_files(inputs),
        unit=recipe.group.unit,
        balance=recipe.train.balance,
        copies=not rejecting,
        mu_of_other_prompts=recipe.train.teacher_mu == "any_prompt",
    )
    not_as_seen: dict[str, int] = {}
    if any(row.text is not None for row in members.rows):
        members, not_as_seen = as_seen(members, load_tokenizer(checked_base(inputs, recipe, execution)))
    if rejecting:
        members, not_admitted = best_of_groups(members, recipe)
    else:
        members, not_admitted = admit(members, recipe, _archived(inputs), str(groups))
    for reason, count in (left_out | not_as_seen | not_admitted).items():
        out.exclude(reason, count)
    return members


def _plan(inputs: Inputs, recipe: Recipe, members: Members, out: Out | None) -> list[PlannedStep]:
    """The batch plan, on disk before training starts (`out` is None in a process that writes nothing)."""
    plan = planned(inputs, recipe, members)
    if out is not None and "batch_plan.parquet" not in out.committed():
        draft = out.scratch / "batch_plan.parquet"
        write_table(plan_rows(plan), draft, BATCH_PLAN)
        out.commit_shard("batch_plan.parquet", draft)
    return plan


def _work(
    inputs: Inputs,
    recipe: Recipe,
    execution: Execution,
    *,
    objective: Objective,
    members: Members,
    plan: list[PlannedStep],
) -> Work:
    from stages.engines.adapters import check_adapter, read_adapters
    from stages.training.baselines import PolicyScores, read_scores
    from stages.training.objective import check_steps
    from stages.training.turns import Work, read_clock

    base = checked_base(inputs, recipe, execution)
    previous = inputs["previous"].path if "previous" in inputs.artifacts else None
    if previous is not None:
        for folder in read_adapters(previous).folders.values():
            check_adapter(folder, base)
    done = 0 if previous is None else read_clock(previous)
    check_steps(recipe.train, done + len(plan))
    iteration = int(inputs.params["iteration"])
    scores = PolicyScores(tuple(_archived(inputs)), read_scores(logprob_files(inputs)))
    return Work(recipe, execution, objective, base, previous, iteration, members, plan, done, scores)


def _finish(inputs: Inputs, draft: Path, figures: dict[str, Any]) -> None:
    """Add the policy chain and the metrics to what was trained, where a weight moved."""
    from stages.engines.adapters import read_adapters

    chain = _policies(inputs)
    if not figures["steps"]:
        metrics = {"trained": False, "reason": f"ended before the first step: {figures['ended_early']}"}
    else:
        adapters = read_adapters(draft).digests()
        row = {
            "policy": policy_digest(chain[0]["base"], adapters),
            "base": chain[0]["base"],
            "adapters": canonical_json(adapters),
            "parent": chain[-1]["policy"],
            "iteration": int(inputs.params["iteration"]) + 1,
        }
        if any(row["policy"] == before["policy"] for before in chain):
            metrics = {"trained": False, "reason": "no weight moved"}
        else:
            metrics = {"trained": True, "policy": row["policy"], "parent": row["parent"], **figures}
            write_table([*chain, row], draft / "policies.parquet", POLICIES)
    (draft / "metrics.json").write_text(canonical_json(metrics))


def _policies(inputs: Inputs) -> list[dict[str, Any]]:
    """The policy chain so far, in order of iteration."""
    holder = inputs.artifacts.get("previous", inputs["base"])
    rows = read_rows(holder.file("policies.parquet"), POLICIES)
    return sorted(rows, key=lambda row: row["iteration"])


def _archived(inputs: Inputs) -> list[str]:
    """Digests of the policies of the run, oldest first: pi_0 is the last."""
    return [row["policy"] for row in _policies(inputs)]


def _untrained(inputs: Inputs, out: Out, reason: str) -> dict[str, Any]:
    """Carry the policy chain through, byte for byte."""
    holder = inputs.artifacts.get("previous", inputs["base"])
    if "policies.parquet" not in out.committed():
        draft = out.scratch / "policies.parquet"
        shutil.copyfile(holder.file("policies.parquet"), draft)
        out.commit_shard("policies.parquet", draft)
    return {"trained": False, "reason": reason, "policy": _policies(inputs)[-1]["policy"]}
