"""Texts to tokens, what comes again looked up: logs repeat instructions and demos in call after call.

A text is cut at the special tokens in it. A tokenizer treats what stands between them for itself, wherever it stands,
so that the tokens of such parts, put together, are those of the whole; where a tokenizer is of a kind for which that
may not hold, whole texts are encoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stages.ingest.skeletons import Skeletons

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BUDGET = 32 << 20
"""Characters and tokens that are remembered."""


class Encoding:
    """The student's tokenizer and template, for many texts."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._cut, self._eos = _boundaries(tokenizer), tokenizer.eos_token_id
        added = tokenizer.get_added_vocab().items() if self._cut else ()
        self._parts = _Memory({text: [number] for text, number in added if self._cut and self._cut.fullmatch(text)})
        self._completions = _Memory()
        template = tokenizer.chat_template
        self._chats = Skeletons(template if isinstance(template, str) else None, self._rendered)
        tokenizer("", add_special_tokens=False)  # which takes truncation and padding out of what is behind it

    def ready(self, texts: Iterable[str]) -> None:
        """Remember the tokens of texts that will be asked for: many at once take half the time of one by one."""
        if self._cut is None:
            return
        known = self._parts.get
        new = {part: None for text in texts for part in self._cut.split(text) if part and known(part) is None}
        found = self._tokenizer.backend_tokenizer.encode_batch_fast(list(new), add_special_tokens=False)
        for part, encoded in zip(new, found, strict=True):
            self._parts.put(part, encoded.ids)

    def text(self, messages: Sequence[dict[str, str]]) -> str:
        """What the template makes of a conversation.

        Raises:
            TemplateError, TypeError, ValueError: as the template does.
        """
        return self._chats.text(messages)

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """As `stages.engines.texts.encode_chat`."""
        return self._ids(self._chats.text(messages))

    def _rendered(self, messages: Sequence[dict[str, str]]) -> str:
        return str(self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False))

    def completion(self, text: str, *, ended: bool) -> list[int] | None:
        """As `stages.engines.texts.encode_completion`."""
        ids = self._completions.get(text)
        if ids is None:
            ids = self._ids(text)
            given = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            if given != text:
                return None
            self._completions.put(text, ids)
        return [*ids, self._eos] if ended else list(ids)

    def _ids(self, text: str) -> list[int]:
        if self._cut is None:
            return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        found: list[int] = []
        get = self._parts.get
        for part in self._cut.split(text):
            if part:
                ids = get(part)
                found += self._part(part) if ids is None else ids
        return found

    def _part(self, text: str) -> list[int]:
        (encoded,) = self._tokenizer.backend_tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoded.ids
        self._parts.put(text, ids)
        return ids


class _Memory:
    """Tokens by text, up to a size; then it begins anew.

    Args:
        kept: what is always remembered.
    """

    def __init__(self, kept: Mapping[str, list[int]] | None = None) -> None:
        self._kept = dict(kept or {})
        self._held = dict(self._kept)
        self._size = 0
        self.get = self._held.get

    def put(self, text: str, ids: list[int]) -> None:
        self._size += len(text) + 8 * len(ids)
        if self._size > _BUDGET:
            self._held.clear()
            self._held.update(self._kept)
            self._size = len(text) + 8 * len(ids)
        self._held[text] = ids


def _boundaries(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str] | None:
    """What finds the special tokens in a text as the tokenizer does: leftmost, longest.

    None where it is not certain that parts have the tokens that they have in the whole.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or tokenizer.split_special_tokens:
        return None
    try:
        made = json.loads(backend.to_str())
    except Exception:  # noqa: BLE001 - tokenizers raises no other, for parts that are written in Python
        return None
    bare = [token for token in made["added_tokens"] if not token["normalized"]]
    greedy = any(token[flag] for token in bare for flag in ("lstrip", "rstrip", "single_word"))
    if not bare or greedy or _knows_its_place(made.get("pre_tokenizer")) or made["model"].get("dropout"):
        return None
    longest_first = sorted((token["content"] for token in bare), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")


def _knows_its_place(made: Any) -> bool:
    """Whether a pre-tokenizer treats the beginning of a text otherwise than the beginning of a part."""
    if isinstance(made, dict):
        return made.get("prepend_scheme") == "first" or any(map(_knows_its_place, made.values()))
    return isinstance(made, list) and any(map(_knows_its_place, made))
