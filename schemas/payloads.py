"""Of what kind the payload of a manifest is, what its key was made from, as far as others read it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field

from schemas.shapes import Count, Digest, Number, Shape

Place = Annotated[int, Field(ge=0, lt=2**31)]
"""Of an iteration in its run."""
Size = Annotated[int, Field(gt=0, lt=2**31)]


class Inputs(Shape):
    """Digests by role. Those that a stage always has are named by its own."""

    __pydantic_extra__: dict[str, Digest]


Slice = TypeVar("Slice", bound=Shape)
Params = TypeVar("Params", bound=Shape)
Roles = TypeVar("Roles", bound=Inputs)


class Payload(Shape, Generic[Slice, Params, Roles]):
    """Of a stage: the part of the recipe, the parameters and the inputs that decide what it makes."""

    stage: str
    stage_version: int
    recipe: Slice
    params: Params
    inputs: Roles


class _Data(Shape):
    data: Digest


class _Program(Shape):
    factory: str
    state: dict[str, Any] | None = None
    code: dict[str, str] = {}
    files: dict[str, str] = {}


class _Identity(Shape):
    identity: _Program


class _Texts(Shape):
    tokenizer: Digest
    template: Digest


class _Model(_Texts):
    base: Digest
    weights: Digest


class _Base(Shape):
    base: _Model


class _OfPolicy(Shape):
    policy: Digest


class _OfIteration(Shape):
    iteration: Place


class _Sampled(_OfPolicy, _OfIteration):
    """Of what a policy samples in an iteration."""


class _Teacher(Shape):
    name: str
    rollouts: Size
    lm: str | None
    sampling: dict[str, Any]
    program: _Program | None = None
    adapter: Digest | None = None


class _Taught(_OfIteration):
    teacher: _Teacher
    policy: Digest | None
    examples: list[str]


class _Grouped(_OfIteration):
    split: str | None = None


class _Rated(_OfPolicy):
    rows: Literal["all", "own"]


class _Trained(_OfIteration):
    rejection: dict[str, Any] | None = None


class _Scored(_OfPolicy):
    split: str


class _Drifted(_Scored):
    canaries: Digest | None = None


class _Logged(Shape):
    traces: Digest
    base: _Texts
    key_id: str | None = None
    parent: Digest | None = None
    forgotten: list[Digest] | None = None
    labels: Digest | None = None
    rescored: Digest | None = None


class _GroupSlice(Shape):
    seed: Count
    group: dict[str, Any]
    k: Size
    balance: str
    context: Size | None = None


class _TrainSlice(Shape):
    model: dict[str, Any]


class _Scoring(Shape):
    failure_score: Number
    samples: Size
    limit: Size | None = None


class _ScoreSlice(Shape):
    evaluate: _Scoring


class _Redact(Shape):
    kinds: Literal["all"] | list[str] = []
    patterns: dict[str, str] = {}
    entities: list[str] = []


class _Ingest(Shape):
    dev: Number
    key_env: str | None = None
    redact: _Redact = _Redact()


class _IngestSlice(Shape):
    ingest: _Ingest


class _OfBase(Inputs):
    base: Digest


class _Sampling(_OfBase):
    examples: Digest
    program: Digest


class _Grouping(Inputs):
    policies: Digest
    rollout: Digest


class _Training(_OfBase):
    group: Digest
    rollout: Digest


class _Drifting(_OfBase):
    evaluate: Digest


OF_STAGE: Mapping[str, type[Shape]] = {
    "examples": Payload[Shape, _Data, Inputs],
    "program": Payload[Shape, _Identity, Inputs],
    "base": Payload[Shape, _Base, Inputs],
    "prompts": Payload[Shape, _Sampled, _Sampling],
    "rollout": Payload[Shape, _Sampled, _Sampling],
    "teacher": Payload[Shape, _Taught, _Sampling],
    "group": Payload[_GroupSlice, _Grouped, _Grouping],
    "logprobs": Payload[Shape, _Rated, _Training],
    "train": Payload[_TrainSlice, _Trained, _Training],
    "evaluate": Payload[_ScoreSlice, _Scored, _Sampling],
    "drift": Payload[Shape, _Drifted, _Drifting],
    "ingest": Payload[_IngestSlice, _Logged, Inputs],
}
