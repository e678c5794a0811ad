"""Multi-hop retrieval: find all pages that a question or claim needs, some of which only earlier ones lead to.

Two modules in a loop. `query` writes a search query from the question and the notes so far; `note` writes down what the
passages found add. A hop brings the `k` best passages that no earlier hop brought, so that `hops` hops find at most
hops * k. The last hop takes no note: nothing would read it.

Plain (the default): fields as plain text, one-line answers, demonstrations as chat turns, which is what a small model
can follow. With `reasoning`: DSPy's own format and a chain of thought, without demonstrations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dspy

from pipeline.tasks.bm25 import Retriever
from schemas.errors import RecipeError
from stages.programs.imports import import_named
from stages.programs.plain_adapter import PlainAdapter

NOTHING = "none yet"
"""What stands in place of notes before the first search."""
QUERY = (
    "Write a search query for a page that is still missing to answer the question or check the claim. "
    "Write the query and nothing else."
)
NOTE = "Write down in one sentence what the passages say that helps with the question or claim."
METAMORPHOSIS = "Which river flows through the city where the author of The Metamorphosis was born?"
KAFKA = "The Metamorphosis was written by Franz Kafka."
QUERY_DEMOS = (
    {"question": METAMORPHOSIS, "notes": NOTHING, "query": "The Metamorphosis author"},
    {"question": METAMORPHOSIS, "notes": KAFKA, "query": "Franz Kafka birthplace"},
    {
        "question": "The painter of The Scream was born in the same country as the playwright of Peer Gynt.",
        "notes": "The Scream was painted by Edvard Munch, who was born in Norway.",
        "query": "Peer Gynt playwright",
    },
)
NOTE_DEMOS = (
    {
        "question": METAMORPHOSIS,
        "notes": NOTHING,
        "passages": "The Metamorphosis: The Metamorphosis is a novella by Franz Kafka published in 1915.\n"
        "Metamorphosis: Metamorphosis is a process by which an animal develops after birth or hatching.",
        "note": KAFKA,
    },
)


class Shared:
    """A retriever that copies of a program share: an index is large, and optimizers copy programs."""

    def __init__(self, retriever: Retriever) -> None:
        self.search = retriever.search

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared:
        return self


class MultiHop(dspy.Module):
    """Searches `hops` times with `k` new passages each; the output has `titles`, `queries` and `notes`, in order."""

    def __init__(self, retriever: Retriever, hops: int, k: int, characters: int, *, reasoning: bool) -> None:
        super().__init__()
        self.retriever, self.hops, self.k, self.characters = Shared(retriever), hops, k, characters
        predictor = dspy.ChainOfThought if reasoning else dspy.Predict
        self.query = predictor(dspy.Signature("question, notes -> query", QUERY))
        self.note = predictor(dspy.Signature("question, notes, passages -> note", NOTE))
        if not reasoning:
            self.adapter = PlainAdapter()
            self.query.demos = [dspy.Example(demo).with_inputs("question", "notes") for demo in QUERY_DEMOS]
            self.note.demos = [dspy.Example(demo).with_inputs("question", "notes", "passages") for demo in NOTE_DEMOS]

    def forward(self, question: str) -> dspy.Prediction:
        """Run on one question or claim."""
        found: dict[tuple[str, str], None] = {}
        queries: list[str] = []
        notes: list[str] = []
        for hop in range(self.hops):
            seen = "\n".join(notes) or NOTHING
            queries.append(self.query(question=question, notes=seen).query)
            new = self._new_passages(queries[-1], found)
            found.update(dict.fromkeys(new))
            if hop + 1 < self.hops:
                notes.append(self.note(question=question, notes=seen, passages=self._shown(new)).note)
        titles = list(dict.fromkeys(title for title, _ in found))
        return dspy.Prediction(titles=titles, passages=len(found), queries=queries, notes=notes)

    def _new_passages(self, query: str, found: Mapping[tuple[str, str], None]) -> list[tuple[str, str]]:
        best = [(title, text) for title, text in self.retriever.search(query, self.k + len(found))]
        return [passage for passage in best if passage not in found][: self.k]

    def _shown(self, passages: Sequence[tuple[str, str]]) -> str:
        return "\n".join(f"{title}: {text[: self.characters]}" for title, text in passages) or "nothing was found"


def program(
    *,
    root: Path,
    hops: int = 4,
    k: int = 25,
    characters: int = 1000,
    reasoning: bool = False,
    retriever: str = "pipeline.tasks.bm25:factory",
    retriever_args: Mapping[str, Any] | None = None,
) -> MultiHop:
    """The program.

    Args:
        root: the recipe's folder.
        hops: searches.
        k: new passages a hop.
        characters: of each passage that `note` is shown.
        reasoning: whether to ask for a chain of thought, in DSPy's own format.
        retriever: import path of a function that returns a `Retriever`; called with `root` and `retriever_args`.
        retriever_args: for the one that ships: `corpus`, a Parquet file relative to the recipe.

    Raises:
        RecipeError: for numbers below 1, or a retriever that cannot be had.
    """
    for name, value in (("hops", hops), ("k", k), ("characters", characters)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise RecipeError(f"program.args.{name} is {value!r}, expected a whole number from 1")
    made = import_named(retriever, "program.args.retriever", root)(root=root, **(retriever_args or {}))
    if not callable(getattr(made, "search", None)):
        raise RecipeError(
            f"program.args.retriever '{retriever}' made a {type(made).__name__}, expected one with search(query, k)"
        )
    return MultiHop(made, hops, k, characters, reasoning=reasoning)
