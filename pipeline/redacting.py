"""Redaction on the way from files of traces to a snapshot: marks before the disk is touched, pseudonyms after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.recipes import LoadedRecipe
from schemas.execution import Execution
from stages.ingest.entities import entity_finder
from stages.ingest.normal import Item, Refused
from stages.ingest.patterns import finders_of
from stages.ingest.redact import Decode, Redactor
from stages.ingest.snapshot import secret_of

if TYPE_CHECKING:
    from stages.engines.models import BaseModel


def redactor_of(loaded: LoadedRecipe, execution: Execution) -> Redactor | None:
    """What takes out of traces what the recipe names; None where it names nothing.

    Raises:
        RecipeError: when named entities are asked for and what finds them is not installed, or the secret of users'
            keys is not set.
    """
    from stages.engines.models import resolve_base

    section = loaded.recipe.ingest.redact
    if not section.on:
        return None
    entities = entity_finder(section)
    base = resolve_base(loaded.recipe.model.base, loaded.root, Path(execution.cache) if execution.cache else None)
    return Redactor([*finders_of(section), *([entities] if entities else [])], secret_of(loaded.recipe), _decoder(base))


def _decoder(base: BaseModel) -> Decode:
    from stages.engines.models import load_tokenizer

    tokenizer = load_tokenizer(base)
    size = len(tokenizer)

    def decode(ids: Sequence[int]) -> str | None:
        return str(tokenizer.decode(list(ids))) if max(ids) < size else None

    return decode


def redacted(item: Item, redactor: Redactor | None) -> Item:
    """An item as it may be written; what is nested too deeply to be looked through is refused."""
    if redactor is None:
        return item
    try:
        return redactor.item(item)
    except RecursionError:
        return Refused("not_storable", "a value is nested too deeply", item.where, item.trace)
