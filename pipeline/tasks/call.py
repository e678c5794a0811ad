"""What a program is given to call an LM with, as types for programs and their tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

Messages = list[dict[str, str]]
"""Chat messages: dictionaries with `role` and `content`."""


class Completion(Protocol):
    """One completion: its text, what `parse` made of it, and why it ended."""

    @property
    def text(self) -> str:
        """The completion as text."""

    @property
    def value(self) -> Any:
        """What `parse` returned; null without one."""


class Call(Protocol):
    """Makes one LM call of the module named first. `lm` is "student" or the name of another LM of the recipe."""

    def __call__(
        self,
        module: str,
        messages: Messages,
        *,
        lm: str = "student",
        parse: Callable[[str], Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        **sampling: Any,
    ) -> Awaitable[Completion]:
        """The completion; a bad one raises after its retries and ends the run."""


class Example(Protocol):
    """One example as a metric sees it."""

    @property
    def inputs(self) -> Mapping[str, Any]:
        """What the program was given."""

    @property
    def labels(self) -> Mapping[str, Any]:
        """What only the metric sees."""


def chat(system: str, shots: list[tuple[str, str]], user: str) -> Messages:
    """A system message, demonstrations as earlier turns of the conversation, and the user's turn."""
    turns = [
        {"role": role, "content": content}
        for question, answer in shots
        for role, content in (("user", question), ("assistant", answer))
    ]
    return [{"role": "system", "content": system}, *turns, {"role": "user", "content": user}]
