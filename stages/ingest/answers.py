"""What a model answered, out of a logged response in the form of any of the usual APIs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stages.ingest.logged import tokens_of
from stages.ingest.messages import message, messages_of, one_message, plain_message
from stages.ingest.values import text, unpacked

_DEEP = 4
_WRAPPERS = ("output", "response", "message", "result", "body")
"""Keys that hold a response as a whole, or a text."""


@dataclass(slots=True)
class Answer:
    """A response."""

    message: Mapping[str, Any] | None
    """In normal form; None where the response holds none, as that of a failure."""
    choices: int = 1
    """How many the response held; `message` is the first."""
    finish_reason: str | None = None
    model: str | None = None
    tokens: Mapping[str, Any] = field(default_factory=dict)
    """Ids and log-probabilities, as fields of `Call`."""


def answer_of(value: Any, deep: int = 0) -> Answer | None:
    """The answer that a logged response holds; None where it holds none."""
    value = unpacked(value)
    if isinstance(value, str):
        return Answer({"role": "assistant", "content": value})
    if isinstance(value, list):
        only = plain_message(value[0]) if len(value) == 1 else None
        return _of_list(value) if only is None or only["role"] != "assistant" else Answer(only, 1, _reason(value[0]))
    if not isinstance(value, dict) or deep > _DEEP:
        return None
    readers = (_of_choices, _of_generations, _of_items, _of_candidates, _of_messages, _of_message)
    found = (reader(value) for reader in readers)
    return next((answer for answer in found if answer is not None), None) or _of_wrapped(value, deep)


def _of_messages(value: Mapping[str, Any]) -> Answer | None:
    held = unpacked(value.get("messages"))
    return _of_list(held) if isinstance(held, list) else None


def _of_message(value: Mapping[str, Any]) -> Answer | None:
    """A message, or its content alone."""
    content = value.get("content")
    made = one_message(value)
    if made is None and isinstance(content, dict) and isinstance(content.get("parts"), list):
        made = message(content.get("role") or "assistant", content["parts"])  # Gemini's, without its candidates
    beside = isinstance(value.get("text"), str) or isinstance(content, (str, list)) or bool(value.get("tool_calls"))
    if made is None and beside:
        made = message("assistant", value.get("text", content), value)
    if made is None:
        return None
    return Answer(made, finish_reason=_reason(value), model=_model(value), tokens=tokens_of(value))


def _of_wrapped(value: Mapping[str, Any], deep: int) -> Answer | None:
    for name in _WRAPPERS:
        if (inner := answer_of(value.get(name), deep + 1)) is not None:
            return Answer(
                inner.message, inner.choices, inner.finish_reason or _reason(value), inner.model, inner.tokens
            )
    return None


def said_by(messages: Sequence[Mapping[str, Any]]) -> Answer | None:
    """The answer that a list of messages ends with.

    APIs log the text and the tool calls of one answer as messages of their own, and several answers to one request just
    so: where more than one has a text, they are several.
    """
    last: list[Mapping[str, Any]] = []
    for item in reversed(messages):
        if item["role"] != "assistant":
            break
        last.insert(0, item)
    texts = [item for item in last if item["content"]]
    if not last or len(texts) > 1:
        return Answer(last[0], choices=len(texts)) if last else None
    calls = [call for item in last for call in item.get("tool_calls", ())]
    thought = "".join(item.get("reasoning", "") for item in last)
    made = {**last[0], **(texts[0] if texts else {})}
    made |= {name: held for name, held in (("tool_calls", calls), ("reasoning", thought)) if held}
    return Answer(made)


def _of_list(values: list[Any]) -> Answer | None:
    """A list of messages, or DSPy's list of completions, each a text or an object with one."""
    if _are_chunks(values):
        return answer_of({**values[-1], "choices": [_streamed(values)]})
    plain = [item for item in values if isinstance(item, str)]
    bare = [item for item in values if isinstance(item, dict) and "text" in item and not item.get("role")]
    if values and len(plain) == len(values):
        return Answer({"role": "assistant", "content": plain[0]}, choices=len(plain))
    if values and len(bare) == len(values) and not any("type" in item for item in bare):
        first = bare[0]
        made = message("assistant", first.get("text"), first)
        return Answer(made, len(bare), _reason(first), None, tokens_of(first))
    found = messages_of(values)
    if found is None and _are_parts(values):
        return Answer(message("assistant", values))
    if found is None or (answer := said_by(found)) is None:
        return None
    reason = _reason(values[-1]) if isinstance(values[-1], dict) else None
    return Answer(answer.message, answer.choices, reason)


def _are_chunks(values: list[Any]) -> bool:
    """Whether a list is a streamed response of OpenAI's API, a part an item."""
    parts = [item.get("choices") if isinstance(item, dict) else None for item in values]
    return bool(values) and all(
        isinstance(held, list) and all(isinstance(one, dict) and isinstance(one.get("delta"), dict) for one in held)
        for held in parts
    )


_THOUGHTS = ("reasoning_content", "reasoning")


def _streamed(chunks: list[Any]) -> dict[str, Any]:
    """The first choice of a streamed response as it is when it came whole."""
    parts = [one for item in chunks for one in item["choices"] if one.get("index") in (0, None)]
    texts = [held for one in parts if isinstance(held := one["delta"].get("content"), str)]
    calls = [call for one in parts for call in one["delta"].get("tool_calls") or ()]
    thoughts = [held for one in parts for name in _THOUGHTS if isinstance(held := one["delta"].get(name), str)]
    said: dict[str, Any] = {"role": "assistant", "content": "".join(texts), "reasoning": "".join(thoughts)}
    said |= {"tool_calls": calls} if calls else {}
    return {"message": said, "finish_reason": next((one["finish_reason"] for one in parts if _reason(one)), None)}


def _of_choices(value: Mapping[str, Any]) -> Answer | None:
    """A chat or text completion of OpenAI's API."""
    choices = unpacked(value.get("choices"))
    if not isinstance(choices, list):
        return None
    if not choices or not isinstance(choices[0], dict):
        return Answer(None, choices=0, model=_model(value))
    first = choices[0]
    said = first.get("message") if isinstance(first.get("message"), dict) else first.get("delta")
    said = said if isinstance(said, dict) else {"content": first.get("text")}
    made = message(said.get("role") or "assistant", unpacked_content(said.get("content")), said)
    return Answer(made, len(choices), _reason(first), _model(value), tokens_of(first, said, value))


def unpacked_content(value: Any) -> Any:
    """Content parts out of their JSON; a text stays what it is, also one that is JSON."""
    found = unpacked(value)
    return found if _are_parts(found) else value


def _are_parts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) and "type" in item for item in value)


def _of_generations(value: Mapping[str, Any]) -> Answer | None:
    """LangChain's `LLMResult`: a list for each prompt of a batch, of which there is one."""
    held = unpacked(value.get("generations"))
    if not isinstance(held, list):
        return None
    inner = held[0] if held and isinstance(held[0], list) else held
    if not inner or not isinstance(inner[0], dict):
        return Answer(None, choices=0)
    first = inner[0]
    said = messages_of(first["message"]) if isinstance(first.get("message"), dict) else None
    made = said[-1] if said else message("assistant", first.get("text"))
    held = first.get("message")
    held = held.get("kwargs", held.get("data", held)) if isinstance(held, dict) else {}
    about = held.get("response_metadata") if isinstance(held, dict) else None
    beside = [first.get("generation_info"), first.get("generationInfo"), about]
    beside += [value.get("llm_output"), value.get("llmOutput")]  # its JavaScript spells keys in its own way
    known = [item for item in beside if isinstance(item, dict)]
    reason = next((found for item in known if (found := _reason(item))), None)
    model = next((found for item in known if (found := _model(item))), None)
    return Answer(made, len(inner), reason, model, tokens_of(*known))


def _of_items(value: Mapping[str, Any]) -> Answer | None:
    """A response of the Responses API."""
    items = unpacked(value.get("output"))
    if not isinstance(items, list) or not (value.get("object") == "response" or "status" in value):
        return None
    found = messages_of(items)
    answer = said_by(found) if found else None
    cut = value.get("incomplete_details")
    reason = cut.get("reason") if isinstance(cut, dict) else None
    done = "stop" if value.get("status") == "completed" else None
    return Answer(answer.message if answer else None, 1, text(reason) or done, _model(value), tokens_of(value))


def _of_candidates(value: Mapping[str, Any]) -> Answer | None:
    """A response of Gemini's API."""
    held = value.get("candidates")
    if not isinstance(held, list) or not held or not isinstance(held[0], dict):
        return None
    first = held[0]
    made = message("assistant", (first.get("content") or {}).get("parts") if first.get("content") else None)
    return Answer(made, len(held), _reason(first), _model(value))


_REASONS = ("finish_reason", "finishReason", "stop_reason", "stopReason", "done_reason")


def _reason(value: Mapping[str, Any]) -> str | None:
    for name in _REASONS:
        if name in value and (found := text(value[name])):
            return found
    cut = value.get("incomplete_details")
    if isinstance(cut, dict) and (found := text(cut.get("reason"))):
        return found
    beside = value.get("response_metadata")
    return _reason({name: beside.get(name) for name in _REASONS}) if isinstance(beside, dict) else None


def _model(value: Mapping[str, Any]) -> str | None:
    return next((found for name in ("model", "model_name", "modelVersion") if (found := text(value.get(name)))), None)
