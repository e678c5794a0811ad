"""A two-hop question answering program over real passages: the benchmark's long prompts that differ within a group.

`query` asks for passages twice, the second time under what the first search found; `answer` reads all of them. What
is found depends on the sampled query, so members of a group share instructions and question, not their passages.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.tasks.call import Call, Example, chat

PASSAGES = Path(__file__).resolve().parents[2] / "data" / "multihop_small" / "passages.parquet"
FOUND = 3
"""Passages that a search gives."""
QUERY = (
    "Write a search query that finds what is still missing to answer the question. Write the query and nothing else."
)
ANSWER = "Answer the question from the passages in a few words. Write the answer and nothing else."
QUERY_DEMOS = [("Question: Who directed the film that won Best Picture in 1998?", "Best Picture winner 1998 film")]
ANSWER_DEMOS = [("Question: In which country is Lake Annecy?\n\n[1] Lake Annecy is a lake in France.", "France")]

Passage = tuple[str, str]
"""Title and text."""


class Index:
    """Passages by the rare words that they share with a query."""

    def __init__(self, passages: list[Passage]) -> None:
        self.passages = passages
        self.words = [set(words(f"{title} {text}")) for title, text in passages]
        holders = Counter(word for each in self.words for word in each)
        self.rarity = {word: math.log(len(passages) / count) for word, count in holders.items()}

    def search(self, query: str, known: list[Passage]) -> list[Passage]:
        """The best passages that are not known yet; ties in the order of the file."""
        wanted = set(words(query))
        scores = [sum(self.rarity[word] for word in wanted & each) for each in self.words]
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        return [self.passages[index] for index in order if self.passages[index] not in known][:FOUND]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def program() -> Any:
    """The program, over the passages that the repository ships."""
    index = Index(list(pl.read_parquet(PASSAGES).select("title", "text").iter_rows()))

    async def run(inputs: Mapping[str, Any], call: Call) -> dict[str, Any]:
        found: list[Passage] = []
        for _ in range(2):
            asked = await call("query", chat(QUERY, QUERY_DEMOS, _text(inputs, found)))
            found += index.search(asked.text, found)
        answer = await call("answer", chat(ANSWER, ANSWER_DEMOS, _text(inputs, found)))
        return {"answer": answer.text, "titles": [title for title, _ in found]}

    return run


def _text(inputs: Mapping[str, Any], found: list[Passage]) -> str:
    passages = [f"[{place}] {title}: {text}" for place, (title, text) in enumerate(found, start=1)]
    return "\n\n".join([f"Question: {inputs['question']}", *passages])


def metric(example: Example, output: dict[str, Any], calls: Any) -> float:
    """Half for the share of gold passages found, half for the words of the answer."""
    gold = example.labels["titles"].split("\n")
    wanted, given = set(words(example.labels["answer"])), set(words(output["answer"]))
    found = len(set(gold) & set(output["titles"])) / len(gold)
    return 0.5 * found + 0.5 * len(wanted & given) / max(1, len(wanted | given))
