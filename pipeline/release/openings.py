"""`openings.jsonl` of a run folder: every opening of the test split, each line with the digest of the one before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline.release.chain import append, held, read_chain
from pipeline.release.records import now
from schemas.decisions import Opening

NAME = "openings.jsonl"


def openings(run: Path) -> list[Opening]:
    """All openings, oldest first.

    Raises:
        DataError: when the file was changed.
    """
    return read_chain(run / NAME, Opening)


def note_opening(run: Path, split: str, keys: Sequence[str]) -> bool:
    """Write down, before it is done, that scores of a test split are made; returns whether any of them are news."""
    with held(run / NAME):
        found = openings(run)
        seen = {key for opening in found for key in opening.scores}
        news = tuple(key for key in keys if key not in seen)
        if news:
            append(run / NAME, found, Opening(at=now(), split=split, scores=news))
    return bool(news)
