"""Rows of our own tables on their way through the normal form: the columns that only such rows have.

What a trace in any other format cannot say, how a run ended, what was parsed of a completion, which adapter was served,
stands in `Span.own` and goes over what is made of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from schemas.recipe_ingest import IngestSection
from stages.ingest.inputs import json_or_none
from stages.ingest.normal import Call, Span
from stages.ingest.rewards import NO_SCORE
from stages.ingest.tokens import Encoder, Tokens
from stages.ingest.tree import Tree

ROLLOUT = ("policy", "reward", "reward_parts", "status", "program", "seed")
CALL = ("lm", "parse_status", "parsed_share", "finish_reason", "trainable", "concurrent", "adapter", "engine")
_OF_IDS = ("template", "extends_call")
"""Columns that say something of the ids, and nothing where these are not kept."""
KNOWN = ("fidelity", "tokenizer")
"""Further columns of calls, which decide what becomes of the ids."""
OTHER_TOKENIZER, WAS_PARTIAL, OTHER_LM = "other_tokenizer", "partial_before", "other_lm"


def own_of(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The columns of a row that `Span.own` holds."""
    return {name: row[name] for name in names}


OF_CALLS = (*CALL, *_OF_IDS, *KNOWN)


def rollout_columns(tree: Tree) -> dict[str, Any]:
    """Columns of the rollouts table that a root of our own tables says better."""
    own = tree.root.own if tree.root else {}
    return {name: own[name] for name in ROLLOUT if name in own and name != "reward"}


def own_reward(
    tree: Tree, values: Mapping[str, Sequence[float | None]], section: IngestSection
) -> tuple[float | None, str | None] | None:
    """The reward that the table says, and why there is none; None for other traces, and for logged scores."""
    if tree.root is None or "reward" not in tree.root.own:
        return None
    wanted = [section.reward] if isinstance(section.reward, str) else list(section.reward or {})
    if wanted and all(name in values for name in wanted):
        return None
    reward, ok = tree.root.own["reward"], tree.root.own.get("status") == "ok"
    return reward, NO_SCORE if ok and reward is None else None


def tokens_of_own(span: Span, call: Call, encoder: Encoder, tokenizer: str) -> Tokens:
    """The tokens of a call; of a row of our own tables never of a better fidelity than the row's.

    Args:
        span: the call's.
        call: as logged.
        encoder: the student's.
        tokenizer: digest of the student's.
    """
    own = span.own
    if not own:
        return encoder.tokens(call, span.policy)
    if own.get("lm", "student") != "student":
        return Tokens("partial", OTHER_LM)
    if own.get("fidelity") == "partial":
        return Tokens("partial", WAS_PARTIAL)
    if own.get("tokenizer") in (None, tokenizer) or not call.completion_ids:
        return encoder.tokens(call, span.policy)
    bare = replace(call, prompt_ids=None, completion_ids=None, logprobs=None, logprob_kind=None)
    return encoder.tokens(bare, span.policy)._replace(reason=OTHER_TOKENIZER)


def call_columns(span: Span, fidelity: str) -> dict[str, Any]:
    """Columns of the invocations table that a row of our own tables says better; none for other calls."""
    if not span.own:
        return {}
    of_ids = _OF_IDS if fidelity in ("exact", "ids") else ()
    texts = {"inputs": json_or_none(span.inputs), "outputs": json_or_none(span.outputs)}
    return texts | {name: span.own[name] for name in (*CALL, *of_ids)}
