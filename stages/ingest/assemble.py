"""From one trace in normal form to its rows: a rollout, its invocations, and an account of what was left out.

- Retries: a call with `mmgrpo.attempt` is that attempt. Without it, a call that sends its module's last prompt again,
  after an answer that failed or is not there, is the next attempt of the same invocation.
- invocation_index: `mmgrpo.invocation_index`, else the rank among the module's calls by start. Calls of a module that
  overlap, or of which nothing tells the order, are marked `concurrent`.
- A call that a cache answered is no sample of anything: left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from schemas.canonical import canonical_json, digest_bytes, storable
from schemas.recipe_ingest import IngestSection
from stages.ingest.inputs import inputs_of, json_or_none
from stages.ingest.modules import module_of
from stages.ingest.normal import Call, Refused, Score, Span
from stages.ingest.own import call_columns, own_reward, rollout_columns, tokens_of_own
from stages.ingest.rewards import parts_of, reward_of, values_of
from stages.ingest.stored import canonical_bytes
from stages.ingest.tokens import Encoder, Tokens
from stages.ingest.tree import Tree, grow, once

CACHED, NO_PROMPT, NO_CALLS, BROKEN = "cached", "no_prompt", "no_calls", "broken_spans"
CALLS_LEFT_OUT = "all_calls_left_out"


@dataclass(slots=True)
class Trace:
    """All that was logged of a trace."""

    id: str
    format: str
    spans: Sequence[Span]
    scores: Sequence[Score]
    refused: Sequence[Refused] = ()
    redacted: Mapping[str, int] = field(default_factory=dict)
    """How many values were taken out of it, by kind."""


@dataclass(slots=True)
class Assembled:
    """What came of a trace."""

    trace: dict[str, Any]
    """A row of the traces table; `example_id` is filled in by who knows the secret."""
    inputs: dict[str, Any] | None = None
    rollout: dict[str, Any] | None = None
    invocations: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    repeated: int = 0
    """Spans that were a further record of one. No row tells of them: how often it was exported is not of the trace."""
    fidelity: list[tuple[str, str | None]] = field(default_factory=list)
    """(fidelity, reason) of each invocation."""


class _Placed(NamedTuple):
    """A call that a module is known for."""

    span: Span
    call: Call
    module: str


class _Ranked(NamedTuple):
    """A call at its place among those of its module."""

    placed: _Placed
    rank: int
    attempt: int
    unsure: bool
    """Whether the log leaves open which of the module's calls it is."""


class Assembler:
    """Turns traces into rows.

    Args:
        names: the program's inputs.
        section: how traces are read.
        encoder: of the student.
        digests: `tokenizer` and `template` of the student, written into every row with ids.
    """

    def __init__(self, names: Sequence[str], section: IngestSection, encoder: Encoder, digests: dict[str, str]) -> None:
        self._names, self._section, self._encoder, self._digests = tuple(names), section, encoder, digests

    def assemble(self, trace: Trace) -> Assembled:
        """The rows of a trace. One without a rollout has its reason in the traces table."""
        tree = grow(trace.spans)
        known = tree if isinstance(tree, Tree) else None
        values = values_of(trace.scores, known)
        made = Assembled(_trace_row(trace, known, values), repeated=known.repeated if known else 0)
        inputs: dict[str, Any] | str = inputs_of(tree, self._names, self._section) if isinstance(tree, Tree) else tree
        if known is not None and not known.calls():
            inputs = NO_CALLS
        if isinstance(inputs, str) or known is None:
            made.trace["reason"] = inputs if isinstance(inputs, str) else None
            return made
        if trace.refused:
            made.trace["reason"] = BROKEN  # a call that could not be read may be one of any module
            return made
        placed = self._placed(known, trace.id, made)
        if not placed:
            made.trace["reason"] = CALLS_LEFT_OUT
            return made
        rollout_id = digest_bytes(canonical_bytes(["ingest", trace.id]))[:20]
        reward, made.trace["reward_reason"] = own_reward(known, values, self._section) or reward_of(
            values, self._section
        )
        error = _error(known)
        made.inputs, made.trace["rollout_id"] = inputs, rollout_id
        made.rollout = {
            "example_id": None,
            "rollout_index": None,
            "rollout_id": rollout_id,
            "iteration": 0,
            "source": f"ingest:{trace.format}",
            "policy": (policy := _policy(placed)),
            "program": None,
            "reward": None if error else reward,
            "reward_parts": canonical_json(parts) if (parts := parts_of(values, self._section)) else None,
            "status": "program_error" if error else "ok",
            "error": error,
            "output": json_or_none(known.root.outputs if known.root else None),
            "seed": None,
            **rollout_columns(known),
        }
        made.invocations = [self._row(rollout_id, index, item, made) for index, item in enumerate(_ranked(placed))]
        for row, item in zip(made.invocations, placed, strict=True):
            row["trainable"] = policy is None or item.span.policy == policy
            row.update(call_columns(item.span, row["fidelity"]))
        reasons = Counter(reason for _, reason in made.fidelity if reason)
        made.trace["fidelity_reasons"] = canonical_bytes(reasons).decode()
        return made

    def _placed(self, tree: Tree, trace: str, made: Assembled) -> list[_Placed]:
        found: list[_Placed] = []
        for span in tree.calls():
            module, reason = module_of(span, tree, self._section)
            if span.call is None or not (span.call.messages or span.call.prompt_ids):
                reason = NO_PROMPT
            elif span.call.cached:
                reason = CACHED
            if reason or module is None or span.call is None:
                detail = storable(span.name) or None
                made.left_out.append({"trace": trace, "span": span.span, "reason": reason, "detail": detail})
            else:
                found.append(_Placed(span, span.call, module))
        return found

    def _row(self, rollout_id: str, index: int, ranked: _Ranked, made: Assembled) -> dict[str, Any]:
        placed = ranked.placed
        call, span = placed.call, placed.span
        if span.error:
            tokens = Tokens("partial", "failed")
        else:
            tokens = tokens_of_own(span, call, self._encoder, self._digests["tokenizer"])
        made.fidelity.append((tokens.fidelity, tokens.reason))
        exact, held = tokens.fidelity == "exact", tokens.prompt_ids is not None
        return {
            "rollout_id": rollout_id,
            "call_index": index,
            "module": placed.module,
            "invocation_index": ranked.rank,
            "attempt": ranked.attempt,
            "lm": "student",
            "inputs": None,
            "outputs": None,
            "messages": canonical_bytes(call.messages).decode(),
            "completion": call.completion,
            "prompt_ids": _listed(tokens.prompt_ids),
            "completion_ids": _listed(tokens.completion_ids),
            "sampling_logprobs": _listed(tokens.logprobs) if exact else None,
            "finish_reason": "error" if span.error else tokens.finish,
            "parse_status": "none",
            "parsed_share": None,
            "temperature": call.temperature,
            "top_p": call.top_p,
            "top_k": call.top_k,
            "max_new_tokens": call.max_new_tokens,
            "seed": call.seed if call.seed is None or abs(call.seed) < 2**63 else None,
            "logprob_kind": call.logprob_kind if exact else None,
            "adapter": None,
            "tokenizer": self._digests["tokenizer"] if held else None,
            "template": self._digests["template"] if held else None,
            "engine": f"logged/{storable(call.model)}" if call.model else None,
            "trainable": True,
            "concurrent": ranked.unsure,
            "extends_call": None,
            "fidelity": tokens.fidelity,
            "student_messages": None,
            "student_prompt_ids": None,
            "student_temperature": None,
            "transfer": None,
        }


def _listed(values: Sequence[Any] | None) -> list[Any] | None:
    return values if values is None or isinstance(values, list) else list(values)


def _trace_row(trace: Trace, tree: Tree | None, values: dict[str, list[float | None]]) -> dict[str, Any]:
    spans = (tree.spans if tree else once(trace.spans)).values()
    starts = [span.start for span in spans if span.start is not None]
    users = sorted({span.user for span in trace.spans if span.user})
    root = tree.root if tree else None
    about = {"example": root.example} if root and root.example else {}
    return {
        "trace": trace.id,
        "format": trace.format,
        "rollout_id": None,
        "example_id": None,
        "reason": None,
        "reward_reason": None,
        "scores": canonical_bytes(values).decode(),
        "spans": len(spans),
        "calls": sum(span.kind == "llm" for span in spans),
        "user": users[0] if len(users) == 1 else None,
        "start": min(starts, default=None),
        "metadata": json_or_none({**(dict(root.metadata) if root else {}), **about} or None),
        "fidelity_reasons": "{}",
        "redacted": canonical_bytes(dict(trace.redacted)).decode() if trace.redacted else "{}",
    }


def _error(tree: Tree) -> str | None:
    """Why the program failed: an error below the root that it recovered from is none."""
    root = tree.root
    return storable(root.error) if root and root.error else None


def _policy(placed: Iterable[_Placed]) -> str | None:
    """The policy that sampled the calls, where the log says so.

    A module of which no call says is another model's, as a judge's: it does not make the others' policy unknown.
    """
    by_module: dict[str, set[str | None]] = {}
    for item in placed:
        by_module.setdefault(item.module, set()).add(item.span.policy)
    found = {policy for policies in by_module.values() if policies != {None} for policy in policies}
    return found.pop() if len(found) == 1 else None


def _ranked(placed: Sequence[_Placed]) -> list[_Ranked]:
    """The calls at their places, in the order in which they came."""
    found: dict[str, _Ranked] = {}
    for module in sorted({item.module for item in placed}):
        mine = [item for item in placed if item.module == module]
        unsure = _unsure(mine)
        rank, attempt, last = -1, 0, None
        for item in mine:
            again = last is not None and _tries_again(last, item)
            rank, attempt = (rank, attempt + 1) if again else (rank + 1, 0)
            span = item.span
            place, tried = _logged(span.invocation_index), _logged(span.attempt)
            found[span.span] = _Ranked(
                item,
                rank if place is None else place,
                attempt if tried is None else tried,
                unsure=place is None and span.span in unsure,
            )
            last = item
    return [found[item.span.span] for item in placed]


def _logged(number: int | None) -> int | None:
    return number if number is not None and 0 <= number < 2**31 else None


def _tries_again(before: _Placed, now: _Placed) -> bool:
    if now.span.attempt is not None:
        return now.span.attempt > 0
    failed = before.span.error is not None or before.call.completion is None
    return failed and before.call.messages == now.call.messages


def _unsure(mine: Sequence[_Placed]) -> set[str]:
    """Calls of one module that overlap another one, or stand at the same place."""
    found: set[str] = set()
    latest: Span | None = None
    for before, now in pairwise([item.span for item in mine]):
        if latest is None or (before.end or before.start or 0) > (latest.end or latest.start or 0):
            latest = before
        same = (before.start, before.order) == (now.start, now.order)
        overlaps = now.start is not None and latest.end is not None and now.start < latest.end
        if same or overlaps:
            found |= {now.span, before.span if same else latest.span}
    return found
