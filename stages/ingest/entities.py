"""Named entities, by Presidio: an optional extra, with a spaCy model that its user installs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import RecipeError
from schemas.installing import install
from schemas.recipe_redact import RedactSection
from stages.ingest.patterns import Finder, Found

if TYPE_CHECKING:
    from presidio_analyzer import AnalyzerEngine

_PIECE = 100_000
"""Most characters that are looked at together: what spaCy needs of memory grows with them."""
_SEEN = 200
"""Characters that a piece has in common with the one before it, so that no name is cut in two."""


def entity_finder(section: RedactSection) -> Finder | None:
    """Finds the entities that a recipe names; None where it names none.

    Raises:
        RecipeError: when Presidio or the spaCy model is not installed, or they do not know an entity.
    """
    if not section.entities:
        return None
    engine = _engine(section)
    known = engine.get_supported_entities(language=section.language)
    if strange := sorted(set(section.entities) - set(known)):
        raise RecipeError(
            f"ingest.redact.entities: {', '.join(strange)} is nothing that Presidio finds with {section.model}; "
            f"it finds {', '.join(sorted(known))}"
        )

    def found(text: str) -> Iterator[Found]:
        for start in range(0, len(text), _PIECE):
            begin = max(0, start - _SEEN)
            results = engine.analyze(
                text=text[begin : start + _PIECE],
                language=section.language,
                entities=list(section.entities),
                score_threshold=section.threshold,
            )
            for result in results:
                yield Found(begin + result.start, begin + result.end, result.entity_type)

    return found


def _engine(section: RedactSection) -> AnalyzerEngine:
    if importlib.util.find_spec("presidio_analyzer") is None:
        raise RecipeError(
            f"ingest.redact.entities: Presidio, which finds named entities, is not installed: {install('presidio')}"
        )
    from presidio_analyzer import AnalyzerEngine
    from presidio_analyzer.nlp_engine import NlpEngineProvider
    from spacy.util import is_package

    if not is_package(section.model) and not Path(section.model).is_dir():  # Presidio would fetch it, unasked
        raise RecipeError(
            f"ingest.redact.model: the spaCy model '{section.model}' is not installed: "
            f"python -m spacy download {section.model}, or name a folder that holds a model"
        )
    models = [{"lang_code": section.language, "model_name": section.model}]
    provider = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": models})
    return AnalyzerEngine(nlp_engine=provider.create_engine(), supported_languages=[section.language])
