"""export: tables of a run in a form that others read."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.lineage import iterations
from pipeline.tainted import refuse_tainted
from schemas.errors import RecipeError
from schemas.export import GROUPS_WITH_TOKENS, TOKENS
from schemas.groups import GROUPS
from schemas.parquet import read_frame, write_table
from schemas.rollouts import INVOCATIONS


def export_groups(run: Path, iteration: int, target: Path) -> int:
    """Write the groups of an iteration, each member with its tokens, to one Parquet file. Returns the rows written.

    Raises:
        RecipeError: when the iteration has no groups yet, or the target is there already.
        DataError: when traces are among them that were to be forgotten.
    """
    known = [item for item in iterations(run) if item.group is not None]
    item = next((item for item in known if item.index == iteration), None)
    if item is None or item.group is None or not item.grouped_from:
        raise RecipeError(f"{run} has no groups of iteration {iteration}; it has {[item.index for item in known]}")
    refuse_tainted(run, item.group.digest, f"the group table of iteration {iteration}")
    if target.exists():
        raise RecipeError(f"{target} exists already: give another name")
    key = ["rollout_id", "call_index"]
    members = read_frame(item.group.files("groups"), GROUPS)
    files = [rollout.file("invocations.parquet") for rollout in item.grouped_from]
    tokens = read_frame(files, INVOCATIONS, columns=[*key, *TOKENS])
    joined = members.join(tokens, on=key, how="left", maintain_order="left")
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        rows = write_table(joined, draft, GROUPS_WITH_TOKENS)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return rows
