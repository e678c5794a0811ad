"""The logprobs stage: what one policy thinks of the tokens of a group table, scored by the trainer's own forward pass.

An artifact of its own, so that recipes which differ in nothing that it depends on (another learning rate, another beta,
another loss) share it. Which policies are needed, if any, says `stages/training/needs.py`.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.execution import Execution
from schemas.parquet import preflight, read_table, write_table
from schemas.policies import SHARED
from schemas.recipe import Recipe
from schemas.training import LOGPROBS
from stages.contract import Inputs, Out
from stages.engines.factory import policy_adapters
from stages.training.build import build_scorer, checked_base, how_computed
from stages.training.files import invocation_files
from stages.training.members import Members, Row, load_members

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

    from stages.engines.models import BaseModel
    from stages.training.scorer import Scorer

NAME = "logprobs"
VERSION = 2

SHARD_TOKENS = 1 << 16
"""Computed tokens of a shard, half a minute of a CPU's work on a small model. A constant: the machine does not decide
where shards end."""


def recipe_slice(recipe: Recipe) -> dict[str, Any]:
    """What decides the numbers, beside the input artifacts: how they are computed."""
    return {
        "model": {"dtype": recipe.model.dtype},
        "train": {"precision": recipe.train.precision, "prefix_sharing": recipe.train.prefix_sharing},
    }


def run(inputs: Inputs, recipe: Recipe, execution: Execution, out: Out) -> dict[str, Any]:
    """Write logprobs.parquet, sorted by (rollout_id, call_index): one row an invocation that members point to.

    Params: `policy`, its digest, and `rows`: `all`, or `own` for the invocations that this policy sampled. Artifacts:
    `base`, `rollout` (and `rollout.NAME`), `group`, and `adapter` for a trained policy.

    Raises:
        DataError: for members without usable tokens, or an adapter that does not fit.
        StageError: naming rows whose log-probabilities are not finite.
    """
    members, _ = load_members(inputs["group"].file("groups.parquet"), invocation_files(inputs))
    policy = str(inputs.params["policy"])
    if inputs.params["rows"] == "own":
        members = members.of_policy(policy)
    base = checked_base(inputs, recipe, execution)
    for number, (folder, rows) in enumerate(_by_adapter(inputs, members)):
        part = _Part(f"shards/{number:03d}", policy, folder, rows)
        _score(part, inputs, recipe, execution, out, base=base, total=len(members.rows))
    _compact(out)
    tokens = sum(len(row.completion) for row in members.rows)
    how = how_computed(recipe, base, dropout=0.0)
    return {"policy": policy, "rows": len(members.rows), "completion_tokens": tokens, "path": how}


@dataclass(frozen=True)
class _Part:
    """Rows that one adapter of the policy is for."""

    prefix: str
    policy: str
    adapter: Path | None
    """Its folder; None for modules that the policy has no adapter for: they are the base's."""
    rows: tuple[Row, ...]


def _by_adapter(inputs: Inputs, members: Members) -> list[tuple[Path | None, tuple[Row, ...]]]:
    """The rows of each of the policy's adapters, in order of adapter; without rows none."""
    adapters = policy_adapters(inputs)
    modules: dict[Path | None, list[str]] = {}
    for module in sorted(set(members.module.tolist())):
        adapter = adapters.get(SHARED) or adapters.get(module)
        modules.setdefault(adapter.path if adapter else None, []).append(module)
    return [(folder, members.of_modules(modules[folder]).rows) for folder in sorted(modules, key=str)]


def _score(
    part: _Part, inputs: Inputs, recipe: Recipe, execution: Execution, out: Out, *, base: BaseModel, total: int
) -> None:
    """Commit the shards that are not there yet. Without any left, no model is loaded."""
    from stages.training.cutting import split
    from stages.training.process import isolated

    committed = out.committed("shards/")
    cut = enumerate(split([[row] for row in part.rows], SHARD_TOKENS, packed=True))
    shards = {f"{part.prefix}-{index:05d}.parquet": [part.rows[row] for row in chosen] for index, chosen in cut}
    left = {name: rows for name, rows in shards.items() if name not in committed}
    if not left:
        return
    done = sum(preflight(path, LOGPROBS).num_rows for path in committed.values())
    with isolated(execution.threads), _policy(part, recipe, execution, out, base) as scorer:
        for name, rows in left.items():
            values = _shard(scorer, rows, execution.train_tokens, out, done=done, total=total)
            _commit(out, name, rows, values, policy=part.policy)
            done += len(rows)


@contextlib.contextmanager
def _policy(part: _Part, recipe: Recipe, execution: Execution, out: Out, base: BaseModel) -> Iterator[Scorer]:
    """The policy's model for these rows, ready to score."""
    from stages.engines.models import check_adapter

    started = time.monotonic()
    if part.adapter is not None:
        check_adapter(part.adapter, base)
    scorer, _ = build_scorer(recipe, execution, base, part.adapter, part.rows, dropout=0.0)
    out.telemetry(load_seconds=time.monotonic() - started)
    with scorer.model.disable_adapter() if part.adapter is None else contextlib.nullcontext():
        yield scorer


def _shard(scorer: Scorer, rows: list[Row], budget: int, out: Out, *, done: int, total: int) -> list[torch.Tensor]:
    """Log-probabilities of the rows of one shard."""
    from stages.training.baselines import score_all

    started = time.monotonic()

    def told(count: int, forward: int) -> None:
        speed = forward / max(time.monotonic() - started, 1e-9)
        out.progress(done + count, total, "rows scored", forward_tokens_per_second=speed)

    values, forward = score_all(scorer, rows, budget, told)
    out.telemetry(
        score_seconds=time.monotonic() - started,
        row_tokens=sum(len(row.fed) for row in rows),
        forward_tokens=forward,
    )
    return values


def _commit(out: Out, name: str, rows: list[Row], values: list[torch.Tensor], *, policy: str) -> None:
    draft = out.scratch / "shard.parquet"
    keys = ({"rollout_id": row.rollout_id, "call_index": row.call_index, "policy": policy} for row in rows)
    table = [key | {"logprobs": value.tolist()} for key, value in zip(keys, values, strict=True)]
    write_table(table, draft, LOGPROBS)
    out.commit_shard(name, draft)


def _compact(out: Out) -> None:
    """All shards as one table."""
    shards = out.committed("shards/")
    keys = [("rollout_id", "ascending"), ("call_index", "ascending")]
    table = read_table([shards[name] for name in sorted(shards)], LOGPROBS).sort_by(keys)
    draft = out.scratch / "logprobs.parquet"
    write_table(table, draft, LOGPROBS)
    out.commit_shard("logprobs.parquet", draft)
    out.drop("shards/")
