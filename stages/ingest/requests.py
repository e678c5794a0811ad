"""What a model was asked, out of a logged request in the form of any usual API; and the call that came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stages.ingest.answers import Answer
from stages.ingest.conventions import sampling
from stages.ingest.messages import message, messages_of
from stages.ingest.normal import Call
from stages.ingest.values import text, unpacked

_SYSTEM = ("system", "instructions", "system_instruction", "systemInstruction")
_PROXY = ("model_parameters", "optional_params")
_SETTINGS = (
    "config",
    "generationConfig",
    "generation_config",
    "inferenceConfig",
    "options",
    "parameters",
    "kwargs",
    *_PROXY,
)
_TOOLS = ("tools", "functions", "toolConfig")


@dataclass(slots=True)
class Request:
    """A request."""

    messages: tuple[Mapping[str, Any], ...] | None
    tools: bool = False
    model: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Sampling settings, as fields of `Call`; those that are known."""


def request_of(value: Any) -> Request:
    """The request that a logged value holds: a list of messages, an API's request, or a text."""
    value = unpacked(value)
    if isinstance(value, str):
        return Request(({"role": "user", "content": value},) if value else None)
    if not isinstance(value, Mapping):
        return Request(messages_of(value))
    inner = [found for name in _SETTINGS if isinstance(found := unpacked(value.get(name)), Mapping)]
    held = [value, *inner]
    settings: dict[str, Any] = {}
    for part in reversed(held):
        settings |= sampling(part)
    prompt = messages_of(value) or _of_prompt(value)
    system = next((part[name] for part in held for name in _SYSTEM if part.get(name)), None)
    if prompt and prompt[0]["role"] != "system" and (first := message("system", unpacked(system))) and first["content"]:
        prompt = (first, *prompt)
    tools = any(_offered(part.get(name)) for part in held for name in _TOOLS)
    return Request(prompt, tools, text(value.get("model")), settings)


def _offered(value: Any) -> bool:
    """Whether a request's field for tools holds any; a text that is no JSON holds none."""
    return bool(value) and not isinstance(unpacked(value), str)


def known(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _of_prompt(value: Mapping[str, Any]) -> tuple[dict[str, Any], ...] | None:
    """The prompt of a text completion, as what a user says."""
    for name in ("prompt", "prompts", "input", "contents", "inputs"):
        held = value.get(name)
        held = held[0] if isinstance(held, list) and len(held) == 1 else held
        if isinstance(held, str) and held:
            return ({"role": "user", "content": held},)
        if isinstance(held, list) and (found := messages_of(held)) is not None:
            return found
    return None


def call_of(request: Request, answer: Answer | None, **more: Any) -> Call:
    """The call that a request and its answer make.

    Args:
        request: what was asked; without messages, they are () and the log has only the answer.
        answer: None where none was logged.
        **more: further fields of `Call`; those that are None are left to the request and the answer.
    """
    made = Call(request.messages or (), tools=request.tools, model=request.model)
    if answer is not None:
        made.finish_reason, made.model, made.choices = (
            answer.finish_reason,
            answer.model or request.model,
            answer.choices,
        )
        if said := answer.message:
            made.completion, made.reasoning = said["content"], said.get("reasoning")
            if said.get("other_content") and not said["content"]:
                made.completion = None
            made.tool_calls = tuple(said.get("tool_calls", ()))
    for name, value in (*request.settings.items(), *(answer.tokens.items() if answer else ()), *more.items()):
        if value is not None:
            setattr(made, name, max(value, made.choices) if name == "choices" else value)
    return made
