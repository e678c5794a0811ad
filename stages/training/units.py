"""The unit of the loss: a call on its own, or the calls of a whole rollout as one long completion.

Change from GRPO/TRL: with `group.unit = "trajectory"` the completions of a rollout's calls, one behind the other, are
one line of TRL's loss. Each token then weighs 1/(the rollout's generated tokens), and a ratio or a rho of the sequence
is that of the whole rollout: nothing of the loss itself has to know about calls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import polars as pl

from schemas.errors import ContractError, Violation

_KEY = ("example_id", "group_id", "rollout_id")
_TOLERANCE = 1e-9
"""Of weights that are quotients of whole numbers."""
_DIGITS = 12
"""Shares of a rollout's calls add up to 1 but for rounding; units of equal weight are one call of TRL's loss."""


def with_units(members: pl.DataFrame, unit: Literal["invocation", "trajectory"], balance: str) -> pl.DataFrame:
    """Number the units, and give each row the weight of its unit.

    Args:
        members: rows of the group table in order, with `tokens`, the completion tokens of each.
        unit: what a unit is. In a group of trajectories the n-th rows of a rollout's calls are its n-th copy.
        balance: what the table's weights of trajectories mean: of a call (`sequence`) or of each token (`token`).

    Returns:
        The same rows with `unit` (in order of first appearance) and the new `weight`.
    """
    if unit == "invocation":
        return members.with_row_index("unit")
    whole = pl.col("weight") if balance == "sequence" else pl.col("weight") * pl.col("tokens")
    members = members.with_row_index("place").with_columns(copy=pl.int_range(pl.len()).over(*_KEY, "call_index"))
    return members.with_columns(
        unit=pl.col("place").min().over(*_KEY, "copy").rank("dense") - 1,
        weight=whole.sum().over(*_KEY, "copy").round(_DIGITS),
    ).drop("place", "copy")


def check_units(members: pl.DataFrame, balance: str, where: Path) -> None:
    """Refuse trajectories whose calls do not weigh by their tokens: as one line they could not.

    Args:
        members: rows of a table of trajectories, with `tokens`.
        balance: as for `with_units`.
        where: the table, for the message.

    Raises:
        ContractError: with the keys of such rows.
    """
    of_token = pl.col("weight") / pl.col("tokens") if balance == "sequence" else pl.col("weight")
    first = of_token.first().over(*_KEY)
    uneven = members.filter((of_token - first).abs() > _TOLERANCE * first)
    if uneven.height:
        keys = uneven.select("rollout_id", "call_index").head(3).iter_rows()
        samples = tuple(f"rollout_id={rollout}, call_index={call}" for rollout, call in keys)
        rule = f"the tokens of a trajectory weigh the same (train.balance = '{balance}')"
        hint = "Was the table made with group.unit = 'trajectory' and the same train.balance?"
        raise ContractError("groups", str(where), [Violation(rule, uneven.height, samples)], hint)
