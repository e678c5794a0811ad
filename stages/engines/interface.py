"""The one sampling interface. An engine gets many requests at once and answers each with ids and log-probabilities."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter to sample with: a PEFT folder and its digest."""

    path: Path
    digest: str


@dataclass(frozen=True)
class Sampling:
    """How one completion is drawn. `temperature` 0 is greedy."""

    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    max_new_tokens: int = 128


@dataclass(frozen=True)
class Request:
    """One completion to sample."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    """63-bit seed of this completion alone: its draws do not depend on the batch it is served in."""
    adapter: Adapter | None = None
    messages: Sequence[Mapping[str, str]] = ()
    """The chat that `prompt_ids` were made of: for an engine whose server takes text alone."""


@dataclass(frozen=True)
class Result:
    """One completion.

    `completion_ids` ends with the eos token when `finish_reason` is "stop". `logprobs` has one entry per completion
    id: the log-probability under the distribution that was sampled from (after temperature, top_p and top_k:
    "processed"). Greedy samples have the log-probabilities at temperature 1.

    What a server does not tell is None, and `fidelity` says what that leaves: "ids" are the sampled tokens without
    log-probabilities; "text" is a completion that was given as text, whose ids, if any, are its text in the model's
    tokens, and not surely those that were sampled.
    """

    completion_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    finish_reason: Literal["stop", "length", "context_overflow"]
    text: str
    """The completion as text, without special tokens."""
    fidelity: Literal["exact", "ids", "text"] = "exact"


@dataclass
class EngineUsage:
    """What an engine has done so far, for telemetry."""

    prompt_tokens: int = 0
    """Tokens of all prompts, as if each had been computed alone."""
    prefilled_tokens: int = 0
    """Prompt tokens really computed."""
    completion_tokens: int = 0
    batches: int = 0
    seconds: float = 0.0
    untold: int = 0
    """Answers of which the number of tokens is not known: they are not among the tokens of completions."""
    elsewhere: bool = False
    """Whether a server did it, which may be paid by the token, and not this machine."""


class Engine(Protocol):
    """A sampling engine over one base model."""

    usage: EngineUsage

    @property
    def name(self) -> str:
        """Engine, version and dtype, for example `transformers-5.19.0/bfloat16`: written into every invocation."""

    @property
    def logprob_kind(self) -> Literal["processed", "raw"] | None:
        """Of which distribution its log-probabilities are; None where it gives none."""

    def encode_chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        """Prompt ids of chat messages through the model's chat template, with the generation prompt."""

    def expect(self, digests: Collection[str]) -> None:
        """Only these adapters are asked for from now on: others may make room for new ones."""

    def generate(self, requests: Sequence[Request]) -> list[Result]:
        """Serve all requests, in any internal order; results in the order of the requests.

        A prompt that leaves no room for a completion within the context limit is answered with `context_overflow`
        and no ids; a completion that would pass the limit ends there with `length`.
        """


@runtime_checkable
class ContinuousEngine(Protocol):
    """What an `Engine` also has when it takes requests at any time, rather than batch after batch.

    One thread calls it. Tickets are the caller's: any number that is not in flight.
    """

    def add(self, ticket: int, request: Request) -> None:
        """Take a request in. What is wrong with it alone is said by `poll`.

        Raises:
            DataError, RecipeError: for what no other try would mend, such as an adapter of another base.
        """

    def poll(self, wait_s: float) -> list[tuple[int, Result | Exception]]:
        """Work on what was taken in, for about `wait_s` seconds or a step of the engine's, and hand out what is done.

        Each ticket comes once: with its result, or with what made it fail. An engine that died has failed all its
        requests, and begins anew with the next one.

        Raises:
            DataError, RecipeError, StageError: for what ends the stage.
        """

    def cancel(self, ticket: int) -> None:
        """Nobody waits for this request any more; `poll` does not hand it out. Unknown tickets are none's concern."""


@runtime_checkable
class Closing(Protocol):
    """What an `Engine` also has when it holds more than memory of this process."""

    def close(self) -> None:
        """Let go of processes and connections. The next request opens them anew."""
