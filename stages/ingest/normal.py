"""The normal form of a trace: spans, the LM calls among them, and scores. Every format is read into it.

A field that a format does not log is None; nothing is invented. Values are JSON values as logged. Nothing changes an
item once it is made; that they are not frozen is because to make a frozen one takes three times as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["llm", "agent", "tool", "retriever", "chain", "other"]
NOT_EXPORTED = "not exported"
"""Stands for the parent of a span until another record of it says which that is."""
Message = Mapping[str, Any]
"""`role` and `content`, both texts; also `tool_calls`, `tool_call_id`, `name` or `reasoning` where they were logged."""


@dataclass(slots=True)
class Call:
    """One LM call."""

    messages: tuple[Message, ...]
    """The prompt, as chat messages."""
    completion: str | None = None
    """Its text; None where none was logged, as of a call that failed."""
    tool_calls: tuple[Any, ...] = ()
    """Tool calls that the completion makes: it is then more than its text."""
    reasoning: str | None = None
    """Hidden reasoning, where the tool logs it apart from the text."""
    tools: bool = False
    """Whether the request offered tools, which the chat template would have put into the prompt."""
    finish_reason: str | None = None
    """As logged: "stop", "length", "tool_calls", …"""
    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_new_tokens: int | None = None
    seed: int | None = None
    cached: bool | None = None
    """Whether a cache answered instead of the model."""
    prompt_ids: tuple[int, ...] | None = None
    completion_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    """Of the completion's ids."""
    choices: int = 1
    """How many answers the request got; `completion` is the first, and which one the program used is not known."""
    unseen: bool = False
    """Whether the model was sent something else than these messages: the server kept what came before, or the agent
    made its context shorter."""
    logprob_kind: Literal["processed", "raw"] | None = None
    """Whether logprobs are those of the distribution sampled from; None where the log does not say."""
    streamed: bool = False
    """Whether this is a record of the end of a stream alone, whose request is a span of its own beside it."""
    redacted: bool = False
    """Whether something was taken out of its texts: logged ids are then gone."""


@dataclass(slots=True)
class Span:
    """One step of a trace. The root has no parent, or one that the trace does not hold."""

    trace: str
    span: str
    """Unique within its trace."""
    parent: str | None = None
    kind: Kind = "other"
    name: str = ""
    start: int | None = None
    """Nanoseconds since 1970, UTC."""
    end: int | None = None
    order: int = 0
    """Place among the spans of its trace, for formats without times; 0 where times decide."""
    error: str | None = None
    """Why it failed; None where it did not."""
    agent: str | None = None
    """A name that the program's author gave to this step: of an agent, a graph node or a telemetry function id."""
    scope: str = ""
    """Of an LM span of OpenTelemetry: the instrumentation that wrote it."""
    signature: str | None = None
    """The DSPy signature of a predictor."""
    module: str | None = None
    """`mmgrpo.module`."""
    invocation_index: int | None = None
    attempt: int | None = None
    policy: str | None = None
    inputs: Any = None
    """What the step was given; of the root: the input of the program."""
    outputs: Any = None
    """What it returned; of the root: the output of the program."""
    call: Call | None = None
    """Of kind "llm"."""
    offers: bool = False
    """Of an agent: whether it has tools, which its calls need not say again."""
    example: str | None = None
    """The dataset's own id of the root input, where the log has one."""
    user: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    told: Sequence[Mapping[str, Any]] = ()
    """Messages of its call that were logged apart from it: `name` of the event, `time`, and what was `said`."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Of a row of our own tables: columns that no other field says, numbers and words only. Texts stand above."""
    where: str = ""
    """File and place in it, for messages."""


@dataclass(slots=True)
class Score:
    """One evaluation of a trace or of one of its spans."""

    trace: str
    name: str
    value: float | None
    """None: the evaluation was made and has no number."""
    span: str | None = None
    """None: the whole trace."""
    source: str | None = None
    """Who judged: "human", the name of a metric or of a model."""
    where: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """Something in a file that is no part of any trace: why, and where."""

    reason: str
    """A word, counted: `not_json`, `no_trace_id`, `no_spans`, …"""
    detail: str
    where: str
    trace: str | None = None
    """Where it is known; the trace's other spans are then incomplete."""


Item = Span | Score | Refused
