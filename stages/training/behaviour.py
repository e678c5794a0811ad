"""Where each row's mu comes from, and what is done with rows that have none.

mu, the policy that sampled a row, enters the loss as rho = pi_0/mu. Its log-probabilities are the engine's, logged when
the row was sampled, or (`train.behaviour = "recomputed"`) those of the archived adapter of that policy, scored by the
trainer. Without either there is no rho, and the row no part of mmGRPO: scoring it with pi_0 instead would make the
ratio 1 by construction. Such rows can be trained as *advantage-weighted likelihood*, REINFORCE without correction:

- teachers, always: of positive advantage only, at most `train.teacher_share` of a group. Their mu is the one that was
  logged, if it was: of a teacher that was sent the student's own prompt, or, where `train.teacher_mu` says so, of any.
  It is never scored again, since what sampled was not that policy in the student's prompt;
- others where the recipe says `unknown_behaviour = "likelihood"`: of positive advantage unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from schemas.errors import ContractError, Violation
from schemas.recipe import Recipe
from stages.training.members import TEACHER, Members, Row
from stages.training.names import LIKELIHOOD, OBJECTIVE, REJECTION

Kind = Literal["logged", "scored", "likelihood", "uncorrected"]
"""Where rho comes from: mu as logged, mu as scored by the trainer, no mu, or not wanted (`rho = "none"`)."""


@dataclass(frozen=True)
class Origin:
    """What is known of the policy that sampled a row."""

    kind: Kind
    age: int | None
    """How many policies of the run are newer, 0 for pi_0; None for a policy that is not of the run."""
    scored: torch.Tensor | None = None
    """Its log-probabilities by the trainer, where they were scored; those of pi_0 are known otherwise."""


def kind_of(row: Row, recipe: Recipe, archived: Collection[str]) -> Kind | str:
    """How a row is trained; any other text says which rule it breaks."""
    if row.imitated:
        return "likelihood"
    kind = _mu_of(row, recipe, archived)
    if not row.narrowed or kind not in ("logged", "scored", "uncorrected"):
        return kind
    if recipe.train.truncated_sampling == "refuse":
        return NARROWED
    if kind == "scored":
        return _SCORED_AGAIN
    return _BY_SEQUENCE if kind == "logged" and recipe.train.rho_level == "sequence" else kind


def _mu_of(row: Row, recipe: Recipe, archived: Collection[str]) -> Kind | str:
    train, corrected = recipe.train, recipe.train.rho != "none"
    teacher, admitted = row.source.startswith(TEACHER), recipe.train.unknown_behaviour == "likelihood"
    if row.policy is None and not teacher:
        return "likelihood" if admitted else "policy is present"
    if train.behaviour == "recomputed" and row.policy in archived and corrected:
        return "scored"
    if row.sampling is not None and row.as_sampled:
        return "logged" if corrected else "uncorrected"
    if teacher or (admitted and corrected and row.policy not in archived):
        return "likelihood"
    return _missing(row) if corrected else "uncorrected"


def _missing(row: Row) -> str:
    if row.sampling is None:
        return "sampling_logprobs are present"
    return "sampling_logprobs are those of the distribution that was sampled from (logprob_kind 'processed')"


NARROWED = "sampling was not narrowed by top_p or top_k"
_SCORED_AGAIN = "sampling that is scored again was not narrowed by top_p or top_k"
_BY_SEQUENCE = f"{NARROWED}, where rho is that of a sequence"
_HINTS = {
    "policy is present": (
        'Nobody knows what sampled them: leave them out, or set train.unknown_behaviour = "likelihood" to train on '
        f"them as {LIKELIHOOD}."
    ),
    NARROWED: (
        "What sampled them has no mass on the tokens that were cut, so that ratios to it are biased: sample without "
        'top_p and top_k, or set train.truncated_sampling = "renormalised" to train on them knowingly.'
    ),
    _BY_SEQUENCE: (
        "Over a sequence rho is the product of the mass that was kept at each token, which comes to nothing: set "
        'train.rho_level = "token", or sample without top_p and top_k.'
    ),
    _SCORED_AGAIN: (
        "Scored again they would have the log-probabilities of the whole distribution, which was not sampled from: set "
        'train.behaviour = "logged".'
    ),
}
_NO_MU = (
    'Set train.rho = "none" to train without correcting for the behaviour policy, or train.behaviour = "recomputed" to '
    "score them with the policy that sampled them, where the run has its adapter. Engines log them, and servers that "
    "give token ids and processed log-probabilities: `mmgrpo serve` starts such a one."
)


def admit(members: Members, recipe: Recipe, archived: Collection[str], where: str) -> tuple[Members, dict[str, int]]:
    """The members that are trained on.

    Returns:
        Them, and how many were left out by reason: `likelihood_not_positive`, `teacher_share`.

    Raises:
        ContractError: for rows without a usable mu that the recipe does not admit, with their count and keys.
    """
    kinds = [kind_of(row, recipe, archived) for row in members.rows]
    _refuse(members.rows, kinds, where)
    without_mu = np.array([kind == "likelihood" for kind in kinds], np.bool_)[members.row]
    teacher = np.array([row.source.startswith(TEACHER) for row in members.rows], np.bool_)[members.row]
    positive_only = without_mu & (teacher | (recipe.train.likelihood_advantages == "positive"))
    negative = positive_only & ~(members.advantage > 0)
    kept = ~negative
    over = _over_share(members, without_mu & teacher & kept, kept, recipe.train.teacher_share)
    left_out = {"likelihood_not_positive": int(negative.sum()), "teacher_share": int(over.sum())}
    if not any(left_out.values()):
        return members, {}
    return members.only(kept & ~over), {reason: count for reason, count in left_out.items() if count}


def _refuse(rows: Sequence[Row], kinds: Sequence[str], where: str) -> None:
    for rule in dict.fromkeys(kind for kind in kinds if " " in kind):
        broken = [row.name for row, kind in zip(rows, kinds, strict=True) if kind == rule]
        violation = Violation(rule, len(broken), tuple(broken[:3]))
        raise ContractError("invocations", where, [violation], _HINTS.get(rule, _NO_MU))


def _over_share(
    members: Members, taught: npt.NDArray[np.bool_], kept: npt.NDArray[np.bool_], share: float
) -> npt.NDArray[np.bool_]:
    """Teacher members over their share of a group: those of the lowest advantage, the later of equal ones.

    Of a group with u other members the m best stay, m being the largest number with m <= share * (m + u). Whole units
    go, so that no rollout is cut in a group of trajectories.
    """
    over = np.zeros(len(members), np.bool_)
    for group in np.unique(members.group[taught]):
        here = members.group == group
        units, first = np.unique(members.unit[here & taught], return_index=True)
        others = len(np.unique(members.unit[here & kept & ~taught]))
        allowed = len(units) if share >= 1 else int(share * others / (1 - share) + 1e-9)
        best = np.argsort(-members.advantage[here & taught][first], kind="stable")
        over |= here & np.isin(members.unit, units[best[allowed:]])
    return over


def about(members: Members, recipe: Recipe, archived: Collection[str]) -> dict[str, Any]:
    """What the manifest says of what was trained on.

    Returns:
        The objective by its name, how many of the distinct calls (`rows`) were sampled with top_p or top_k
        (`narrowed_rows`), and what every source has of the members and of the pull.
    """
    narrowed = sum(row.narrowed for row in members.rows)
    if any(row.imitated for row in members.rows):
        return {
            "objective": REJECTION,
            "likelihood_members": 0,
            "likelihood_sources": {},
            "narrowed_rows": narrowed,
            "rows": len(members.rows),
            "sources": by_source(members),
        }
    kinds = np.array([kind_of(row, recipe, archived) == "likelihood" for row in members.rows], np.bool_)[members.row]
    sources = np.array([row.source for row in members.rows], np.str_)[members.row][kinds]
    names, counts = np.unique(sources, return_counts=True)
    part = len(np.unique(members.unit[kinds]))
    whole = f"{OBJECTIVE} and {LIKELIHOOD}" if part else OBJECTIVE
    return {
        "objective": LIKELIHOOD if part and part == members.units else whole,
        "likelihood_members": part,
        "likelihood_sources": dict(zip(names.tolist(), counts.tolist(), strict=True)),
        "narrowed_rows": narrowed,
        "rows": len(members.rows),
        "sources": by_source(members),
    }


def by_source(members: Members) -> dict[str, dict[str, float]]:
    """Per source its `members`, its share of them, and its share of the pull: the sum of |weight times advantage|."""
    sources = np.array([row.source for row in members.rows], np.str_)[members.row]
    _, first = np.unique(members.unit, return_index=True)
    pull = np.abs(members.weight * members.advantage)[first]
    found = {}
    for name in np.unique(sources[first]).tolist():
        mine = sources[first] == name
        share = float(pull[mine].sum() / pull.sum()) if pull.any() else 0.0
        found[name] = {"members": int(mine.sum()), "share": float(mine.mean()), "pull_share": share}
    return found
