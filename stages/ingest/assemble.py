"""From one trace in normal form to its rows: a rollout, its invocations, and an account of what was left out.

A call that a cache answered is no sample of anything: left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from schemas.canonical import digest_bytes, storable
from schemas.recipe_ingest import IngestSection
from stages.ingest.inputs import inputs_of, json_or_none
from stages.ingest.modules import module_of
from stages.ingest.normal import Refused, Score, Span
from stages.ingest.own import call_columns, own_reward, rollout_columns, tokens_of_own
from stages.ingest.ranks import Placed, Ranked, policy_of, ranked
from stages.ingest.rewards import Values, parts_of, reward_of, values_of
from stages.ingest.stored import canonical_bytes
from stages.ingest.tokens import Encoder, Tokens
from stages.ingest.tree import Tree, grow, once

CACHED, NO_PROMPT, NO_CALLS, BROKEN = "cached", "no_prompt", "no_calls", "broken_spans"
CALLS_LEFT_OUT = "all_calls_left_out"
_AT_ONCE = 512
"""Spans of traces whose texts go through the tokenizer together, and the rest of the last of them."""


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


class _Begun(NamedTuple):
    """A trace before its calls have tokens."""

    trace: Trace
    made: Assembled
    tree: Tree | None = None
    values: Values | None = None
    placed: Sequence[Placed] = ()
    """Its calls; none where it is no rollout."""


class Assembler:
    """Turns traces into rows.

    Args:
        names: the program's inputs.
        section: how traces are read.
        encoder: of the student.
        digests: `tokenizer` and `template` of the student, written into every row with ids.
    """

    def __init__(self, names: Sequence[str], section: IngestSection, encoder: Encoder, digests: dict[str, str]) -> None:
        self.section = section
        self._names, self._encoder, self._digests = tuple(names), encoder, digests

    def each(self, traces: Iterable[Trace]) -> Iterator[Assembled]:
        """The rows of each trace. One without a rollout has its reason in the traces table."""
        for some in _together(traces):
            every = [self._begun(trace) for trace in some]
            self._encoder.ready([item.call for begun in every for item in begun.placed if not item.span.error])
            for begun in every:
                yield self._finished(begun) if begun.placed else begun.made

    def _begun(self, trace: Trace) -> _Begun:
        """A trace with its calls at their modules, or why it is no rollout."""
        tree = grow(trace.spans)
        known = tree if isinstance(tree, Tree) else None
        values = values_of(trace.scores, known)
        made = Assembled(_trace_row(trace, known, values), repeated=known.repeated if known else 0)
        inputs: dict[str, Any] | str = inputs_of(tree, self._names, self.section) if isinstance(tree, Tree) else tree
        if known is not None and not known.calls():
            inputs = NO_CALLS
        if isinstance(inputs, str) or known is None:
            made.trace["reason"] = inputs if isinstance(inputs, str) else None
            return _Begun(trace, made)
        if trace.refused:
            made.trace["reason"] = BROKEN  # a call that could not be read may be one of any module
            return _Begun(trace, made)
        made.inputs, placed = inputs, self._placed(known, trace.id, made)
        if not placed:
            made.trace["reason"], made.inputs = CALLS_LEFT_OUT, None
        return _Begun(trace, made, known, values, placed)

    def _finished(self, begun: _Begun) -> Assembled:
        """The rows of a trace that is a rollout."""
        trace, made, known, values, placed = begun
        assert known is not None
        assert values is not None
        rollout_id = digest_bytes(canonical_bytes(["ingest", trace.id]))[:20]
        reward, made.trace["reward_reason"] = own_reward(known, values, self.section) or reward_of(values, self.section)
        error = _error(known)
        made.trace["rollout_id"] = rollout_id
        made.rollout = {
            "example_id": None,
            "rollout_index": None,
            "rollout_id": rollout_id,
            "iteration": 0,
            "source": f"ingest:{trace.format}",
            "policy": (policy := policy_of(placed)),
            "program": None,
            "reward": None if error else reward,
            "reward_parts": canonical_bytes(parts).decode() if (parts := parts_of(values, self.section)) else None,
            "status": "program_error" if error else "ok",
            "error": error,
            "output": json_or_none(known.root.outputs if known.root else None),
            "seed": None,
            **rollout_columns(known),
        }
        made.invocations = [self._row(rollout_id, index, item, made) for index, item in enumerate(ranked(placed))]
        for row, item in zip(made.invocations, placed, strict=True):
            row["trainable"] = policy is None or item.span.policy == policy
            if item.span.own:
                row.update(call_columns(item.span, row["fidelity"]))
        made.trace["fidelity_reasons"] = _counted(tuple(reason for _, reason in made.fidelity if reason))
        return made

    def _placed(self, tree: Tree, trace: str, made: Assembled) -> list[Placed]:
        found: list[Placed] = []
        for span, why in tree.found.further:
            made.left_out.append(_left_out(trace, span, why))
        for span in tree.calls():
            module, reason = module_of(span, tree, self.section)
            if span.call is None or not (span.call.messages or span.call.prompt_ids):
                reason = NO_PROMPT
            elif span.call.cached:
                reason = CACHED
            if reason or module is None or span.call is None:
                made.left_out.append(_left_out(trace, span, reason))
            else:
                found.append(Placed(span, span.call, module))
        return found

    def _row(self, rollout_id: str, index: int, at: Ranked, made: Assembled) -> dict[str, Any]:
        placed = at.placed
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
            "invocation_index": at.rank,
            "attempt": at.attempt,
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
            "engine": _engine(call.model) if call.model else None,
            "trainable": True,
            "concurrent": at.unsure,
            "extends_call": None,
            "fidelity": tokens.fidelity,
            "student_messages": None,
            "student_prompt_ids": None,
            "student_temperature": None,
            "transfer": None,
        }


def _left_out(trace: str, span: Span, reason: str | None) -> dict[str, Any]:
    return {"trace": trace, "span": span.span, "reason": reason, "detail": storable(span.name) or None}


def _listed(values: Sequence[Any] | None) -> list[Any] | None:
    return values if values is None or isinstance(values, list) else list(values)


def _together(traces: Iterable[Trace]) -> Iterator[list[Trace]]:
    some: list[Trace] = []
    spans = 0
    for trace in traces:
        some.append(trace)
        spans += len(trace.spans)
        if spans >= _AT_ONCE:
            yield some
            some, spans = [], 0
    if some:
        yield some


@lru_cache(1024)
def _engine(model: str) -> str:
    return f"logged/{storable(model)}"


@lru_cache(1024)
def _counted(reasons: tuple[str, ...]) -> str:
    """How many calls have each reason, as canonical JSON."""
    return canonical_bytes({reason: reasons.count(reason) for reason in reasons}).decode()


def _trace_row(trace: Trace, tree: Tree | None, values: dict[str, list[float | None]]) -> dict[str, Any]:
    spans = (tree.spans if tree else once(trace.spans)).values()
    starts = [span.start for span in spans if span.start is not None]
    users = {span.user for span in trace.spans if span.user}
    root = tree.root if tree else None
    about: dict[str, Any] = {**root.metadata} if root else {}
    if root and root.example:
        about["example"] = root.example
    return {
        "trace": trace.id,
        "format": trace.format,
        "rollout_id": None,
        "example_id": None,
        "reason": None,
        "reward_reason": None,
        "scores": canonical_bytes(values).decode(),
        "spans": len(spans),
        "calls": sum([span.kind == "llm" for span in spans]),
        "user": users.pop() if len(users) == 1 else None,
        "start": min(starts, default=None),
        "metadata": json_or_none(about or None),
        "fidelity_reasons": "{}",
        "redacted": canonical_bytes(dict(trace.redacted)).decode() if trace.redacted else "{}",
    }


def _error(tree: Tree) -> str | None:
    """Why the program failed: an error below the root that it recovered from is none.

    A root that is the trace itself, as Langfuse's, says nothing of failures: it failed with the one step below it.
    """
    root = tree.root
    if root is not None and root.error is None and root.span == root.trace and root.end is None:
        steps = [span for span in tree.spans.values() if span.parent == root.span]
        root = steps[0] if len(steps) == 1 else root
    return storable(root.error) if root and root.error else None
