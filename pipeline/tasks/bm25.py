"""BM25 over a file of passages: the retriever that ships (Robertson et al. 1994, by the library bm25s).

A passage is its title and text together, lower-cased, without English stop words. Equal scores come in the order of
the file, so that a search gives the same passages on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import polars as pl

from schemas.errors import RecipeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BUILDING = Lock()


class Passage(NamedTuple):
    """One passage of a page; a page may have several."""

    title: str
    text: str


class Retriever(Protocol):
    """What a multi-hop program searches with."""

    def search(self, query: str, k: int) -> Sequence[tuple[str, str]]:
        """At most `k` passages as (title, text), the best first. Called from several threads."""


class BM25:
    """Passages of one file. The index is built at the first search, once a process."""

    def __init__(self, corpus: Path) -> None:
        self.corpus = corpus

    def search(self, query: str, k: int) -> list[Passage]:
        """At most `k` passages that share a word with the query, the best first; ties in the order of the file."""
        with _BUILDING:
            passages, index = _index(self.corpus)
        scores = _scores(index, query, len(passages))
        best = np.argsort(-scores, kind="stable")[:k]
        return [passages[place] for place in best if scores[place] > 0]


def factory(*, root: Path, corpus: str = "passages.parquet") -> BM25:
    """The retriever over `corpus`, a Parquet file with the columns `title` and `text`, relative to the recipe.

    Raises:
        RecipeError: when there is no such file.
    """
    path = (root / corpus).resolve()
    if not path.is_file():
        raise RecipeError(f"program.args.retriever_args.corpus: no file at {path}. It starts at the recipe's folder.")
    return BM25(path)


@cache
def _index(corpus: Path) -> tuple[list[Passage], Any]:
    import bm25s

    try:
        frame = pl.read_parquet(corpus, columns=["title", "text"])
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise RecipeError(f"{corpus}: expected Parquet with the columns title and text ({reason})") from None
    passages = [Passage(title, text) for title, text in frame.iter_rows()]
    words = bm25s.tokenize([f"{title} {text}" for title, text in passages], stopwords="en", show_progress=False)
    index = bm25s.BM25()
    index.index(words, show_progress=False)
    return passages, index


def _scores(index: Any, query: str, size: int) -> NDArray[np.float32]:
    """The score of every passage, shape (size,); all 0 for a query without any word that a passage has."""
    import bm25s

    words = bm25s.tokenize([query], stopwords="en", return_ids=False, show_progress=False)[0]
    known = [word for word in words if word in index.vocab_dict]
    return np.asarray(index.get_scores(known)) if known else np.zeros(size, dtype=np.float32)
