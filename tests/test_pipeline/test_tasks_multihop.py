from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import polars as pl
import pytest
from dspy.utils import DummyLM

from pipeline.recipes import load_recipe
from pipeline.tasks import multihop, multihop_metric
from pipeline.tasks.bm25 import factory
from schemas.errors import RecipeError
from schemas.recipe import Recipe, with_preset
from stages.programs.load import program_identity

DATA = Path(__file__).parents[2] / "data" / "multihop"
PASSAGES = [
    ("Raffles (film)", "Raffles is a crime film directed by Alejandro Galindo."),
    ("Alejandro Galindo", "Alejandro Galindo was a Mexican director."),
    ("Prem Granth", "Prem Granth is a film directed by Rajiv Kapoor."),
    ("Rajiv Kapoor", "Rajiv Kapoor was an Indian actor and director."),
    ("Raffles", "Sir Stamford Raffles founded Singapore."),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pl.DataFrame(PASSAGES, schema=["title", "text"], orient="row").write_parquet(tmp_path / "passages.parquet")
    return tmp_path


def run(made: multihop.MultiHop, answers: list[str], question: str = "Who?") -> tuple[Any, list[dict[str, Any]]]:
    """Runs the program with an LM that gives these answers; returns the output and the prompts sent."""
    lm = DummyLM([{"answer": text} for text in answers], adapter=_Raw())
    with dspy.context(lm=lm, adapter=made.adapter):
        output = made(question=question)
    return output, [entry["messages"] for entry in lm.history]


class _Raw(dspy.ChatAdapter):
    """Writes an answer as it is."""

    def format_assistant_message_content(self, signature: Any, outputs: Any, missing_field_message: Any = None) -> str:
        return str(outputs["answer"])

    def format_field_with_value(self, fields_with_values: Any) -> str:
        return str(next(iter(fields_with_values.values())))


def test_a_search_gives_the_best_passages_first_and_nothing_without_a_shared_word(root: Path):
    retriever = factory(root=root)
    assert [title for title, _ in retriever.search("Prem Granth film", 2)] == ["Prem Granth", "Raffles (film)"]
    assert retriever.search("quantum", 5) == []
    assert retriever.search("", 5) == []
    assert retriever.search("of the", 5) == []


def test_passages_of_equal_score_come_in_the_order_of_the_file(tmp_path: Path):
    frame = pl.DataFrame({"title": ["B", "A", "C"], "text": ["same words", "same words", "other text"]})
    frame.write_parquet(tmp_path / "p.parquet")
    found = factory(root=tmp_path, corpus="p.parquet").search("words", 2)
    assert [title for title, _ in found] == ["B", "A"]


def test_a_hop_brings_k_passages_that_no_earlier_one_brought(root: Path):
    made = multihop.program(root=root, hops=3, k=1)
    output, _ = run(made, ["Raffles film", "a note", "Raffles film", "another", "director"])
    assert output.titles == ["Raffles (film)", "Raffles", "Alejandro Galindo"]
    assert output.passages == 3
    assert output.queries == ["Raffles film", "Raffles film", "director"]
    assert output.notes == ["a note", "another"]


def test_the_last_hop_takes_no_note(root: Path):
    output, prompts = run(multihop.program(root=root, hops=1, k=2), ["Raffles"])
    assert len(prompts) == 1
    assert output.notes == []


def test_notes_reach_the_next_query_and_passages_reach_the_note_shortened(root: Path):
    _, prompts = run(multihop.program(root=root, hops=2, k=1, characters=9), ["Prem Granth", "by Kapoor", "Kapoor"])
    assert prompts[1][-1]["content"] == "Question: Who?\nNotes: none yet\nPassages: Prem Granth: Prem Gran"
    assert prompts[2][-1]["content"] == "Question: Who?\nNotes: by Kapoor"


def test_demonstrations_are_earlier_turns_of_the_chat(root: Path):
    _, prompts = run(multihop.program(root=root, hops=1, k=1), ["x"])
    turns = [message["role"] for message in prompts[0]]
    assert turns == ["system", *["user", "assistant"] * len(multihop.QUERY_DEMOS), "user"]
    assert prompts[0][2]["content"] == multihop.QUERY_DEMOS[0]["query"]


def test_with_reasoning_modules_think_and_have_no_demonstrations(root: Path):
    made = multihop.program(root=root, reasoning=True)
    assert all(not predictor.demos for predictor in made.predictors())
    assert all("reasoning" in predictor.signature.output_fields for predictor in made.predictors())


def test_a_copy_of_the_program_shares_the_retriever(root: Path):
    made = multihop.program(root=root)
    assert copy.deepcopy(made).retriever is made.retriever
    assert made.deepcopy().retriever is made.retriever


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"hops": 0}, "program.args.hops is 0"),
        ({"k": True}, "program.args.k is True"),
        ({"retriever": "nowhere:f"}, "program.args.retriever 'nowhere:f'"),
        ({"retriever": "builtins:dict"}, "expected one with search"),
        ({"retriever_args": {"corpus": "none.parquet"}}, r"no file at .*none\.parquet"),
    ],
)
def test_a_program_that_cannot_be_is_refused(root: Path, args: dict[str, Any], message: str):
    with pytest.raises(RecipeError, match=message):
        multihop.program(root=root, **args)


def test_a_retriever_may_be_named_by_import_path(root: Path, monkeypatch: pytest.MonkeyPatch):
    code = (
        "class Fixed:\n    def __init__(self, titles): self.titles = titles\n"
        "    def search(self, query, k): return [[title, query] for title in self.titles[:k]]\n"
        "def make(root, titles): return Fixed(titles)\n"
    )
    (root / "fixed_retriever.py").write_text(code)
    monkeypatch.syspath_prepend(root)
    made = multihop.program(
        root=root, hops=1, k=2, retriever="fixed_retriever:make", retriever_args={"titles": ["P", "Q", "R"]}
    )
    output, _ = run(made, ["anything"])
    assert output.titles == ["P", "Q"]


@pytest.mark.parametrize(
    ("titles", "expected"),
    [
        (["A", "B", "X"], {"score": 1.0, "found": 2.0, "complete": 1.0, "passages": 5.0}),
        (["X", "B"], {"score": 0.5, "found": 1.0, "complete": 0.0, "passages": 5.0}),
        ([], {"score": 0.0, "found": 0.0, "complete": 0.0, "passages": 5.0}),
    ],
)
def test_the_score_is_the_share_of_gold_titles_found(titles: list[str], expected: dict[str, float]):
    example = SimpleNamespace(labels={"titles": ["A", "B"]})
    assert multihop_metric.metric(example, dspy.Prediction(titles=titles, passages=5), []) == expected


def test_the_corpus_belongs_to_the_programs_identity(tmp_path: Path):
    (tmp_path / "recipe.toml").write_text((DATA / "recipe.toml").read_text())
    corpora = [PASSAGES, PASSAGES[:-1]]
    identities = []
    for passages in corpora:
        frame = pl.DataFrame(passages, schema=["title", "text"], orient="row")
        frame.write_parquet(tmp_path / "passages.parquet")
        loaded = load_recipe(tmp_path / "recipe.toml", [])
        identities.append(program_identity(loaded.recipe, loaded.root))
    assert identities[0]["files"] != identities[1]["files"]
    assert identities[0]["args"] == identities[1]["args"]
    assert "pipeline.tasks.bm25" in identities[0]["code"]


def shipped() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pl.read_parquet(DATA / "examples.parquet").to_dicts()
    return rows


def test_no_gold_page_stands_in_two_splits_and_all_are_in_the_corpus():
    pages: dict[str, set[str]] = {}
    for row in shipped():
        assert len(set(row["titles"])) == len(row["titles"]) >= 2
        pages.setdefault(row["split"], set()).update(title.casefold() for title in row["titles"])
    assert not pages["train"] & pages["dev"]
    assert not pages["test"] & (pages["train"] | pages["dev"])
    titles = set(pl.read_parquet(DATA / "passages.parquet")["title"])
    assert all(title in titles for row in shipped() for title in row["titles"])


def test_the_pages_of_the_demonstrations_are_gold_in_no_split():
    gold = {title.casefold() for row in shipped() for title in row["titles"]}
    shown = " ".join(str(demo) for demo in (*multihop.QUERY_DEMOS, *multihop.NOTE_DEMOS))
    assert not gold & {"the metamorphosis", "franz kafka", "edvard munch", "the scream", "peer gynt", "norway"}
    assert all(row["question"] not in shown for row in shipped())


def test_the_figures_of_bm25_are_those_that_source_md_states():
    retriever = factory(root=DATA)
    rows = [row for row in shipped() if row["source"] == "musique"]
    shares = []
    for row in rows:
        titles = {title for title, _ in retriever.search(row["question"], 10)}
        shares.append(len(titles & set(row["titles"])) / len(row["titles"]))
    assert f"{sum(shares) / len(shares):.2f}" == "0.45"
    assert "| musique | 87 | .32 | .37 | .45 |" in (DATA / "SOURCE.md").read_text()


@pytest.mark.parametrize("name", ["recipe.toml", "recipe_paper.toml"])
def test_the_recipes_are_valid_and_find_as_many_passages_as_they_say(name: str):
    read: Callable[[str], dict[str, Any]] = tomllib.loads
    recipe = Recipe.model_validate(with_preset(read((DATA / name).read_text())))
    assert recipe.program.args["hops"] * recipe.program.args["k"] == {"recipe.toml": 12, "recipe_paper.toml": 100}[name]
    assert recipe.program.code == ("passages.parquet",)
