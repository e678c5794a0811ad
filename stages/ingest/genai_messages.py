"""Prompt and answer of a GenAI span, from the newest of the forms that is there.

In order: `gen_ai.input.messages` and `gen_ai.output.messages`, as attributes or in an event of the whole call; one
event for each message; Logfire's list of such events in an attribute; whole lists in the events `gen_ai.content.*` or
the attributes `gen_ai.prompt` and `gen_ai.completion`; one attribute for each message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from stages.ingest.answers import Answer, answer_of, said_by, unpacked_content
from stages.ingest.messages import message, messages_of
from stages.ingest.values import text, unpacked

Prompt = tuple[Mapping[str, Any], ...]
_ROLES = {"gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.assistant.message": "assistant"}
_ROLES |= {"gen_ai.tool.message": "tool", "gen_ai.developer.message": "system"}
_CHOICE = "gen_ai.choice"
RUNS = ("all_messages_events", "pydantic_ai.all_messages")
"""Attributes that hold the messages of a whole run of an agent."""
_LISTS = ("events", *RUNS)
_UNREAD = "gen_ai.unknown"
"""What Logfire calls a part of a prompt that it does not take apart."""
_WHOLE = ("gen_ai.client.inference.operation.details", "gen_ai.content.prompt", "gen_ai.content.completion")
_BEDROCK = frozenset({"text", "toolUse", "toolResult", "reasoningContent", "image", "document", "video"})
_EVENTS = frozenset({*_ROLES, _CHOICE})
_PREFIXES = ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.prompt", "gen_ai.completion", "llm.prompts.")


@lru_cache(4096)
def may_tell(names: tuple[str, ...]) -> bool:
    """Whether an attribute of these names may hold a prompt or an answer."""
    return any(name.startswith(_PREFIXES) or name in _LISTS for name in names)


def asked_and_said(attributes: Mapping[str, Any], events: Sequence[Any]) -> tuple[Prompt | None, Answer | None]:
    """Prompt and answer; None where they were not logged."""
    held = attributes
    for event in events:
        if event.name in _WHOLE:
            held = {**held, **event.attributes}
    if not may_tell(tuple(held)) and not any(event.name in _EVENTS for event in events):
        return None, None
    prompt: Prompt | None = messages_of(held.get("gen_ai.input.messages"))
    answer = _said(held.get("gen_ai.output.messages")) if held.get("gen_ai.output.messages") else None
    if prompt is None:
        prompt, answer = _of_events([(event.name, event.attributes) for event in events])
    if prompt is None:
        prompt, answer = _of_lists(held)
    if prompt is None:
        prompt = messages_of(held.get("gen_ai.prompt")) or _one_by_one(held, "gen_ai.prompt")
        answer = _completion(held, "gen_ai.completion")
    if prompt is None and answer is None:  # OpenLLMetry before it took up the conventions
        prompt, answer = _one_by_one(held, "llm.prompts"), _completion(held, "llm.completions")
    return _with_system(prompt, held.get("gen_ai.system_instructions")), answer


def _said(messages: Any) -> Answer | None:
    """The answer in a list of what the model said, whatever role a tool gives it that does not know it."""
    listed = unpacked(messages)
    return answer_of([_as_said(item) for item in listed] if isinstance(listed, list) else listed)


def _as_said(item: Any) -> Any:
    unnamed = isinstance(item, Mapping) and item.get("role") == "unknown"
    return {**item, "role": "assistant"} if unnamed else item


def _with_system(prompt: Prompt | None, instructions: Any) -> Prompt | None:
    if not prompt or not instructions or prompt[0]["role"] == "system":
        return prompt
    said = messages_of(instructions)
    first = {**said[0], "role": "system"} if said else message("system", unpacked(instructions))
    return (first, *prompt) if first and first["content"] else prompt


def _of_lists(held: Mapping[str, Any]) -> tuple[Prompt | None, Answer | None]:
    """Logfire's attributes: a list of events, or of the messages of a whole run."""
    for name in _LISTS:
        listed = unpacked(held.get(name))
        if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed) or not listed:
            continue
        if any("event.name" in item for item in listed):
            prompt, answer = _of_events([(str(item.get("event.name")), item) for item in listed])
            last = name == "events" and answer is None and _has_response(held)
            return _answered(prompt) if last else (prompt, answer)
        return _answered(messages_of(listed))
    return None, None


def _has_response(held: Mapping[str, Any]) -> bool:
    return any(name.startswith(("gen_ai.response.", "gen_ai.usage.output")) for name in held)


def _answered(messages: Prompt | None) -> tuple[Prompt | None, Answer | None]:
    """A list of messages whose last, where the assistant says it, is the answer to those before."""
    said = said_by(messages) if messages else None
    return (messages[: -_trailing(messages)] if messages and said else messages), said


def _trailing(messages: Prompt) -> int:
    """How many messages of the assistant the list ends with."""
    return next((count for count, said in enumerate(reversed(messages)) if said["role"] != "assistant"), len(messages))


def _of_events(events: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[Prompt | None, Answer | None]:
    prompt: list[Mapping[str, Any]] = []
    told = True
    for name, body in events:
        if name in _ROLES:
            found = message(_ROLES[name], _content(body.get("content")), body)
            prompt += [found] if found else []
            told = told and _tells(body)
        elif name == _UNREAD:
            prompt.append({"role": "unknown", "content": "", "other_content": True})
    choices = list(_choices(events))
    asked = tuple(prompt) if prompt and told else None
    if not choices:
        return asked, None
    said = said_by([made for made, _ in choices])
    if said is None or not all(_tells(body, "message") for name, body in events if name == _CHOICE):
        return asked, Answer(None, len(choices), choices[0][1])
    return asked, Answer(said.message, said.choices, choices[0][1])


def _content(value: Any) -> Any:
    """What the event of a message holds: of Strands, JSON of parts in Bedrock's form, which have no type."""
    found = unpacked(value)
    return found if isinstance(found, list) and found and all(map(_is_bedrocks, found)) else unpacked_content(value)


def _is_bedrocks(part: Any) -> bool:
    return isinstance(part, dict) and len(part) == 1 and part.keys() <= _BEDROCK


def _tells(body: Mapping[str, Any], inner: str = "") -> bool:
    """Whether the event of a message has what was said: SDKs log events without it unless they are told to."""
    held = unpacked(body.get(inner)) if inner else body
    held = {**body, **held} if isinstance(held, Mapping) else {**body, "content": held} if held is not None else body
    return any(name in held for name in ("content", "parts", "tool_calls", "refusal"))


def _choices(events: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[Mapping[str, Any], str | None]]:
    """The messages of the choices, and why each ended."""
    for name, body in events:
        if name == _CHOICE:
            inner = unpacked(body.get("message"))
            if not isinstance(inner, dict):
                inner = {"content": inner if inner is not None else body.get("content")}
            made = message("assistant", unpacked_content(inner.get("content")), {**body, **inner})
            if made:
                yield made, text(body.get("finish_reason"))


def _completion(held: Mapping[str, Any], prefix: str) -> Answer | None:
    if (whole := held.get(prefix)) is not None:
        return answer_of(whole)
    found = _one_by_one(held, prefix)
    said, reason = said_by(found) if found else None, text(held.get(f"{prefix}.0.finish_reason"))
    if said is None:
        return Answer(None, finish_reason=reason) if reason else None
    return Answer(said.message, said.choices, reason)


def _one_by_one(attributes: Mapping[str, Any], prefix: str) -> Prompt | None:
    """Messages as attributes `PREFIX.0.role`, `PREFIX.0.content` and so on; None where one lacks what it says.

    The prompt of a text completion is `PREFIX.0.user`.
    """
    if isinstance(asked := attributes.get(f"{prefix}.0.user"), str):
        return ({"role": "user", "content": asked},)
    found: list[dict[str, Any]] = []
    while any(f"{prefix}.{len(found)}.{name}" in attributes for name in ("role", "content", "tool_calls.0.name")):
        place = f"{prefix}.{len(found)}."
        if not any(f"{place}{name}" in attributes for name in ("content", "tool_calls.0.name")):
            return None
        role = attributes.get(f"{place}role") or ("assistant" if "completion" in prefix else "user")
        extra = {name: attributes.get(f"{place}{name}") for name in ("tool_call_id", "reasoning")}
        calls = {"tool_calls": _calls(attributes, f"{place}tool_calls")}
        made = message(role, unpacked_content(attributes.get(f"{place}content")), {**extra, **calls})
        if made is None:
            return None
        found.append(made)
    return tuple(found) or None


def _calls(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while name := attributes.get(f"{prefix}.{len(found)}.name"):
        parts = {part: attributes.get(f"{prefix}.{len(found)}.{part}") for part in ("id", "arguments")}
        found.append({"name": name, **{part: value for part, value in parts.items() if value is not None}})
    return found
