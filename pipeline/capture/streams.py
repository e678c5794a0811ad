"""A streamed answer put together from its chunks."""

from __future__ import annotations

from typing import Any


class Gathered:
    """Chunks of the chat completions API, of the first of several answers."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._tokens: list[Any] = []
        self._ids: list[Any] = []
        self._prompt_ids: Any = None
        self._finish: Any = None
        self._model: Any = None
        self._indices: set[Any] = set()

    def add(self, chunk: Any) -> None:
        """Take in one chunk."""
        self._model = getattr(chunk, "model", None) or self._model
        self._prompt_ids = getattr(chunk, "prompt_token_ids", None) or self._prompt_ids
        for choice in chunk.choices or []:
            self._indices.add(choice.index)
            if choice.index:
                continue
            self._finish = choice.finish_reason or self._finish
            self._ids += getattr(choice, "token_ids", None) or []
            self._tokens += getattr(choice.logprobs, "content", None) or []
            self._prompt_ids = getattr(choice, "prompt_token_ids", None) or self._prompt_ids
            self._said(choice.delta)

    def _said(self, delta: Any) -> None:
        self._texts.append(delta.content or "")
        thought = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
        self._thoughts += [thought] if isinstance(thought, str) else []
        for part in delta.tool_calls or []:
            held = self._calls.setdefault(part.index, {"id": None, "type": "function", "name": "", "arguments": ""})
            held["id"] = part.id or held["id"]
            if part.function:
                held["name"] += part.function.name or ""
                held["arguments"] += part.function.arguments or ""

    def response(self) -> dict[str, Any] | None:
        """The answer as if it had not been streamed; None where there was none."""
        if not self._indices:
            return None
        calls = [
            {"id": held["id"], "type": held["type"], "function": {name: held[name] for name in ("name", "arguments")}}
            for _, held in sorted(self._calls.items())
        ]
        message = {"content": "".join(self._texts), "reasoning": "".join(self._thoughts), "tool_calls": calls}
        first = {
            "message": message,
            "finish_reason": self._finish,
            "token_ids": self._ids,
            "logprobs": {"content": self._tokens},
        }
        others: list[dict[str, Any]] = [{}] * (len(self._indices) - 1)
        return {"choices": [first, *others], "model": self._model, "prompt_token_ids": self._prompt_ids}
