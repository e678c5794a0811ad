"""The text of each token, by the base's tokenizer where this machine has it. Nothing is downloaded or made for that."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import RecipeError
from stages.engines.convert import SMOLLM2
from stages.engines.digests import tokenizer_digest
from stages.engines.files import cache_folder
from stages.engines.tiny import TINY

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Pieces = Callable[[Sequence[int]], list[str]]
"""Token ids -> the text of each. A token that is only a part of a character has none: the one that ends it has all."""

LONGEST_CHARACTER = 8
"""Tokens after which what is still no character will not become one."""


class Vocabulary:
    """Tokenizers by digest. A row that was made with another tokenizer than the base's of now gets no pieces."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._known: dict[str, Pieces | None] | None = None

    def pieces(self, digest: str | None) -> Pieces | None:
        """What cuts text into the tokens of a tokenizer; None where that tokenizer is not on this machine."""
        if digest is None:
            return None
        if self._known is None:
            self._known = dict(map(_read, folders(self._base)))
        return self._known.get(digest)


def folders(base: str) -> Iterator[Path]:
    """Folders of this machine that may hold a base's tokenizer."""
    cache = cache_folder(None)
    if base == SMOLLM2:
        yield from sorted(cache.glob(f"{SMOLLM2}-*/"))
    elif base.partition(":")[0] == TINY:
        yield from sorted(cache.glob(f"{TINY}-*/"))
    elif (folder := _expanded(base)).is_dir():
        yield folder
    elif base.count("/") == 1:
        yield from _downloaded(base)


def _expanded(base: str) -> Path:
    """A folder's name; of a user whom this machine does not know, as it is."""
    with contextlib.suppress(RuntimeError):
        return Path(base).expanduser()
    return Path(base)


def _downloaded(base: str) -> Iterator[Path]:
    """The folder in the hub's cache, when it was downloaded before."""
    from huggingface_hub import try_to_load_from_cache

    name, _, revision = base.partition("@")
    with contextlib.suppress(ValueError):  # no name of the hub's
        found = try_to_load_from_cache(name, "tokenizer.json", revision=revision or None)
        if isinstance(found, str):
            yield Path(found).parent


@cache
def _read(folder: Path) -> tuple[str, Pieces | None]:
    """The digest of a folder's tokenizer and what cuts by it; None where it cannot be read."""
    from tokenizers import Tokenizer

    try:
        digest = tokenizer_digest(folder)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except RecipeError:
        return "", None
    except Exception:  # noqa: BLE001 - tokenizers raises nothing narrower; without pieces the completion is shown whole
        return digest, None
    return digest, lambda ids: cut(tokenizer, ids)


def cut(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token; together they are the text of all, special tokens included."""
    if not ids:
        return []
    alone = tokenizer.decode_batch([[token] for token in ids], skip_special_tokens=False)
    whole = tokenizer.decode(list(ids), skip_special_tokens=False)
    if "".join(alone) == whole and "\ufffd" not in whole:
        return alone
    return list(_step_by_step(tokenizer, ids, whole))


def _step_by_step(tokenizer: Tokenizer, ids: Sequence[int], whole: str) -> Iterator[str]:
    """Each token's text behind those before it: spaces may hang on neighbours, characters may take several tokens."""
    start, told, given = 0, "", 0  # `told`: the text of the tokens from `start` on that was given out already
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(list(ids[start:end]), skip_special_tokens=False)
        unfinished = text.endswith("\ufffd") and end - start < LONGEST_CHARACTER
        if end == len(ids):
            yield whole[given:]
        elif unfinished or len(text) < len(told):
            yield ""
        else:
            yield whole[given : given + len(text) - len(told)]
            given += len(text) - len(told)
            start, told = end - 1, tokenizer.decode([ids[end - 1]], skip_special_tokens=False)


def halves(ids: Sequence[int], most: int) -> tuple[list[int], int]:
    """Places of at most `most` tokens, the first and the last ones, and how many are left out between them."""
    if len(ids) <= most:
        return list(range(len(ids))), 0
    half = most // 2
    return list(itertools.chain(range(half), range(len(ids) - half, len(ids)))), len(ids) - 2 * half
