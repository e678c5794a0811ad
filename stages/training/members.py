"""What is trained on: group members, joined with the tokens of their invocations.

The group table is a narrow index. Copies (of PadGroups and of selection) point to the same invocation, which is
loaded, and later computed, once. A member that is a whole rollout has one row a call; see `units`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from schemas.errors import ContractError, DataError, Violation
from schemas.groups import GROUPS
from schemas.parquet import read_frame
from schemas.rollouts import INVOCATIONS

if TYPE_CHECKING:
    import polars as pl

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

TEACHER = "teacher:"
"""How the source of a teacher's rollouts begins."""
_TOKENS = (
    "rollout_id",
    "call_index",
    "prompt_ids",
    "student_prompt_ids",
    "completion_ids",
    "completion",
    "sampling_logprobs",
    "temperature",
    "student_temperature",
    "top_p",
    "top_k",
    "logprob_kind",
)


@dataclass(frozen=True)
class Row:
    """One invocation: what the model is run on."""

    rollout_id: str
    call_index: int
    prompt: Ids
    completion: Ids
    sampling: Floats | None
    """Log-probabilities under the behaviour policy, one a completion token; None when they are not known."""
    temperature: float
    """What logits are divided by: the sampling temperature. Greedy samples are scored at 1, as they were logged."""
    policy: str | None = None
    """Digest of the policy that sampled it; None when nobody knows, and for teachers, whose policy has no place in the
    run's order, and under whose prompts none of the run's was sampled."""
    source: str = "student"
    as_sampled: bool = True
    """Whether `sampling` is of the distribution that was sampled from."""
    narrowed: bool = False
    """Whether that was cut by top_p or top_k."""
    imitated: bool = False
    """Whether it is trained by likelihood alone, whatever is known of what sampled it."""
    text: str | None = None
    """The completion as the program saw it; None where it was not recorded."""

    @property
    def fed(self) -> Ids:
        """The tokens to compute: the last one of the completion predicts nothing that is scored."""
        return np.concatenate([self.prompt, self.completion[:-1]])

    @property
    def name(self) -> str:
        """The row's key, for messages."""
        return f"rollout_id={self.rollout_id}, call_index={self.call_index}"


@dataclass(frozen=True)
class Members:
    """M rows of the group table, sorted by (example_id, group_id, member_index), and the R rows that they point to."""

    example: npt.NDArray[np.str_]
    group: npt.NDArray[np.str_]
    module: npt.NDArray[np.str_]
    advantage: Floats
    weight: Floats
    """(M,) of the whole unit."""
    reward: Floats
    row: npt.NDArray[np.intp]
    """(M,) index into `rows`."""
    unit: npt.NDArray[np.intp]
    """(M,) what is one completion for the loss, counted from 0: the member itself, or the rollout whose call it is."""
    rows: tuple[Row, ...]

    def __len__(self) -> int:
        return len(self.row)

    @property
    def units(self) -> int:
        """How many completions the loss sees, copies included."""
        return len(np.unique(self.unit))

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """(M,) completion tokens of each member."""
        return np.array([len(row.completion) for row in self.rows], np.int64)[self.row]

    def of_modules(self, modules: Collection[str]) -> Members:
        """Only the members of some modules, in the same order, with only the rows that they point to."""
        return self.only(np.isin(self.module, list(modules)))

    def of_policy(self, policy: str) -> Members:
        """Only the members that a policy sampled."""
        return self.only(np.array([self.rows[row].policy == policy for row in self.row], np.bool_))

    def only(self, kept: npt.NDArray[np.bool_]) -> Members:
        """Only some members, by mask, in the same order, with only the rows that they point to."""
        mine = np.flatnonzero(kept)
        rows, row = np.unique(self.row[mine], return_inverse=True)
        per_member = [field.name for field in fields(self) if field.name not in ("row", "rows")]
        columns: dict[str, Any] = {name: getattr(self, name)[mine] for name in per_member}
        return Members(**columns, row=row.astype(np.intp), rows=tuple(self.rows[index] for index in rows))


def load_members(
    groups: Path,
    invocations: Sequence[Path],
    *,
    unit: Literal["invocation", "trajectory"] = "invocation",
    balance: str = "sequence",
    copies: bool = True,
    mu_of_other_prompts: bool = False,
) -> tuple[Members, dict[str, int]]:
    """Read and join the two tables.

    Args:
        groups: groups.parquet.
        invocations: files of the invocations table, of one or several rollout artifacts.
        unit: what the groups were made of.
        balance: the recipe's, which decides what the weights of trajectories mean.
        copies: whether copies of PadGroups and of selection are wanted.
        mu_of_other_prompts: whether what a teacher's engine logged under another prompt than the student's counts as
            the density of its completion.

    Returns:
        The members, and how many were left out by reason: `no_completion`, their call returned no token (a prompt
        over the context limit, an engine error); `zero_weight`, they would be in no sum; `copy`.

    Raises:
        ContractError: for members whose invocation is missing or unusable, with their count and keys.
    """
    import polars as pl

    from stages.training.units import check_units, with_units

    key = ["rollout_id", "call_index"]
    every = read_frame(groups, GROUPS).sort("example_id", "group_id", "member_index")
    weighty = every.filter(pl.col("weight") > 0)
    index = weighty if copies else weighty.filter(pl.col("copy_kind") == "none")
    wanted = index.select(key).unique()
    calls = read_frame(invocations, INVOCATIONS, columns=_TOKENS, validate=False).join(wanted, on=key, how="semi")
    calls = _in_the_students_prompt(calls, mu_of_other_prompts=mu_of_other_prompts)
    missing = wanted.join(calls, on=key, how="anti").sort(key)
    _refuse(missing, "every member has its invocation in the rollout artifact", groups)
    # fill_null: a call that failed before its first token has no ids at all.
    silent = calls.filter(pl.col("completion_ids").list.len().fill_null(0) == 0)
    origin = index.select(*key, "policy", "source").unique(key)
    calls = calls.join(silent.select(key), on=key, how="anti").join(origin, on=key, how="left").sort(key)
    unprompted = calls.filter(pl.col("prompt_ids").list.len().fill_null(0) == 0)
    _refuse(unprompted, "prompt_ids are present", groups)
    found = calls.select(*key, tokens=pl.col("completion_ids").list.len()).with_row_index("row")
    kept = index.join(found, on=key, how="inner", maintain_order="left")
    if unit == "trajectory":
        check_units(kept, balance, groups)
    left_out = {
        "zero_weight": every.height - weighty.height,
        "copy": weighty.height - index.height,
        "no_completion": index.height - kept.height,
    }
    rows = tuple(_row(call) for call in calls.iter_rows(named=True))
    return _members(with_units(kept, unit, balance), rows), {
        reason: count for reason, count in left_out.items() if count
    }


def _in_the_students_prompt(calls: pl.DataFrame, *, mu_of_other_prompts: bool) -> pl.DataFrame:
    """Teachers' calls as they are trained: in the student's prompt, at its temperature.

    What was logged under another prompt is not what the teacher thinks of the completion in this one: no mu, unless
    asked for.
    """
    import polars as pl

    prompt = pl.coalesce("student_prompt_ids", "prompt_ids")
    moved = (pl.col("student_prompt_ids") != pl.col("prompt_ids")).fill_null(False)
    sampling = pl.col("sampling_logprobs")
    return calls.with_columns(
        prompt_ids=prompt,
        temperature=pl.coalesce("student_temperature", "temperature"),
        sampled_at=pl.col("temperature"),
        sampling_logprobs=sampling if mu_of_other_prompts else pl.when(~moved).then(sampling),
    )


def _members(frame: pl.DataFrame, rows: tuple[Row, ...]) -> Members:
    def text(name: str) -> npt.NDArray[np.str_]:
        return np.array(frame[name].to_list(), dtype=np.str_)

    numbers = (frame[name].to_numpy().astype(np.float64) for name in ("advantage", "weight", "reward"))
    advantage, weight, reward = numbers
    row, unit = (frame[name].to_numpy().astype(np.intp) for name in ("row", "unit"))
    return Members(text("example_id"), text("group_id"), text("module"), advantage, weight, reward, row, unit, rows)


def _row(call: dict[str, Any]) -> Row:
    sampling = call["sampling_logprobs"]
    cut = (call["top_p"] or 1.0) < 1.0 or call["top_k"] is not None
    narrowed = cut and call["sampled_at"] != 0  # greedy decoding draws from nothing
    changed = narrowed or (call["sampled_at"] or 1.0) != 1.0
    return Row(
        call["rollout_id"],
        call["call_index"],
        np.array(call["prompt_ids"], np.int64),
        np.array(call["completion_ids"], np.int64),
        None if sampling is None else np.array(sampling, np.float64),
        call["temperature"] or 1.0,
        None if call["source"].startswith(TEACHER) else call["policy"],
        call["source"],
        as_sampled=not (changed and call["logprob_kind"] == "raw"),
        narrowed=narrowed,
        text=call["completion"],
    )


def _refuse(broken: pl.DataFrame, rule: str, where: Path) -> None:
    if broken.height:
        keys = broken.select("rollout_id", "call_index").head(3).iter_rows()
        samples = tuple(f"rollout_id={rollout}, call_index={call}" for rollout, call in keys)
        raise ContractError("invocations", str(where), [Violation(rule, broken.height, samples)])


def trained_rows(members: Members) -> list[dict[str, Any]]:
    """The members as rows of the trained table."""
    counts: dict[tuple[str, str, int], int] = {}
    for group, row in zip(members.group.tolist(), members.row.tolist(), strict=True):
        place = group, members.rows[row].rollout_id, members.rows[row].call_index
        counts[place] = counts.get(place, 0) + 1
    names = ("group_id", "rollout_id", "call_index")
    return [dict(zip(names, place, strict=True)) | {"members": count} for place, count in sorted(counts.items())]


def check_vocabulary(rows: Sequence[Row], vocabulary: int) -> None:
    """Refuse token ids that the model does not have, which would be read from beside its embedding.

    Raises:
        DataError: naming the first such row.
    """
    for row in rows:
        largest = int(max(row.prompt.max(), row.completion.max()))
        smallest = int(min(row.prompt.min(), row.completion.min()))
        if largest >= vocabulary or smallest < 0:
            raise DataError(
                f"invocation {row.name}: token ids run from {smallest} to {largest}, the model knows 0 to "
                f"{vocabulary - 1}: were these rollouts made with another base model?"
            )
