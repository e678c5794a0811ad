"""Named entities: what is missing is said, and what Presidio finds is replaced."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from schemas.errors import RecipeError
from schemas.recipe_redact import RedactSection
from stages.ingest.entities import entity_finder

WITHOUT = importlib.util.find_spec("presidio_analyzer") is None


def test_no_entities_need_nothing() -> None:
    assert entity_finder(RedactSection(kinds="all")) is None


@pytest.mark.skipif(not WITHOUT, reason="Presidio is installed")
def test_without_presidio_the_recipe_is_refused_and_told_what_to_install() -> None:
    with pytest.raises(RecipeError, match=r"pip install -e '.\[presidio\]'"):
        entity_finder(RedactSection(entities=("PERSON",)))


@pytest.mark.presidio
def test_without_its_model_the_recipe_is_refused_and_nothing_is_fetched() -> None:
    with pytest.raises(RecipeError, match="spacy download xx_no_such_model"):
        entity_finder(RedactSection(entities=("PERSON",), model="xx_no_such_model"))


def model_of_rules(folder: Path) -> Path:
    """A spaCy model that knows two people."""
    import spacy

    model = spacy.blank("en")
    ruler = model.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "PERSON", "pattern": name} for name in ("Anna Smith", "Bob")])
    model.to_disk(folder)
    return folder


@pytest.mark.presidio
def test_entities_are_found_at_their_places_in_long_texts_too(tmp_path: Path) -> None:
    finder = entity_finder(RedactSection(entities=("PERSON",), model=str(model_of_rules(tmp_path / "model"))))
    assert finder is not None
    text = "Anna Smith met Bob. " + "word " * 19_995 + "Anna Smith met Bob."  # one name lies over the cut
    found = {(item.kind, text[item.start : item.end], item.start) for item in finder(text)}
    last = text.rindex("Anna Smith")
    assert {("PERSON", "Anna Smith", 0), ("PERSON", "Bob", 15), ("PERSON", "Anna Smith", last)} <= found
    assert last < 100_000 < last + 10


@pytest.mark.presidio
def test_an_entity_that_nobody_finds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="UNICORN is nothing that Presidio finds"):
        entity_finder(RedactSection(entities=("UNICORN",), model=str(model_of_rules(tmp_path / "model"))))
