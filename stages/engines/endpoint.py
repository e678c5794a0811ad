"""LMs behind an OpenAI-compatible endpoint: for program modules that are not trained."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from schemas.canonical import storable
from stages.engines.interface import Sampling
from stages.engines.keys import key_from

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

_FINISH = {"stop": "stop", "length": "length"}


class EndpointError(RuntimeError):
    """An endpoint did not answer, after all tries."""


class Answer(NamedTuple):
    """A chat completion. What the endpoint does not tell of its tokens is None."""

    text: str
    finish_reason: str
    """"stop", "length" or "error"."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Answering(Protocol):
    """What answers chats: an endpoint, or what stands in for one."""

    model: str

    def complete(self, messages: list[dict[str, str]], sampling: Sampling) -> Answer:
        """One chat completion."""
        ...


class Endpoint:
    """One endpoint and one model name. Safe to use from several threads.

    The key is read from the environment, kept in the client alone, and taken out of error messages.
    """

    def __init__(
        self,
        name: str,
        url: str,
        model: str,
        api_key_env: str | None,
        *,
        timeout_s: float = 120.0,
        retries: int = 4,
    ) -> None:
        """`name` is what the recipe calls it; further tries come with the client's exponential backoff.

        Raises:
            RecipeError: when the environment has no such variable.
        """
        from openai import OpenAI

        self.name, self.model = name, model
        self._key = key_from(api_key_env, f"lms.{name}.api_key_env")
        self._client = OpenAI(
            base_url=url, api_key=self._key or "none", timeout=timeout_s, max_retries=retries, organization=""
        )

    def complete(self, messages: list[dict[str, str]], sampling: Sampling) -> Answer:
        """One chat completion.

        Raises:
            EndpointError: when it cannot be had.
            ValueError: for top_k, which the protocol does not have.
        """
        from openai import OpenAIError, omit

        if sampling.top_k is not None:
            raise ValueError(f"lms.{self.name}: OpenAI-compatible endpoints have no top_k")
        chat = cast("list[ChatCompletionMessageParam]", messages)
        try:
            answer = self._client.chat.completions.create(
                model=self.model,
                messages=chat,
                temperature=sampling.temperature,
                top_p=omit if sampling.top_p is None else sampling.top_p,
                max_tokens=sampling.max_new_tokens,
            )
        except (OpenAIError, ValueError) as error:  # the client lets a body that is not JSON through as ValueError
            raise EndpointError(f"lms.{self.name}: {self._without_key(error)}") from None
        return self._read(answer)

    def _read(self, answer: object) -> Answer:
        """What an answer says. The client does not check it: a gateway may send anything."""
        choices = getattr(answer, "choices", None)
        message = getattr(choices[0], "message", None) if isinstance(choices, list) and choices else None
        content = getattr(message, "content", None)
        if message is None or not isinstance(content, (str, NoneType)):
            what = "no text" if message else f"no chat completion but a {type(answer).__name__} without choices"
            raise EndpointError(f"lms.{self.name}: the answer is {what}; is lms.{self.name}.url right?")
        assert isinstance(choices, list)
        reason = _FINISH.get(str(choices[0].finish_reason), "error")
        return Answer(storable(content or ""), reason, *map(_count_of(answer), ("prompt_tokens", "completion_tokens")))

    def _without_key(self, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}"
        return text.replace(self._key, "***") if self._key else text


def _count_of(answer: object) -> Callable[[str], int | None]:
    """Reads a number of tokens from an answer."""
    usage = getattr(answer, "usage", None)

    def count(name: str) -> int | None:
        value = getattr(usage, name, None)
        return value if isinstance(value, int) and value >= 0 else None

    return count
