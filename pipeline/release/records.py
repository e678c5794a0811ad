"""`decisions/NNNN.json` of a run folder: written once, in order, each with the digest of the one before."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.remote.attached import swap
from schemas.canonical import canonical_json
from schemas.decisions import Decision
from schemas.errors import DataError
from schemas.foreign import read_json

FOLDER = "decisions"


def decisions(run: Path) -> list[Decision]:
    """All decisions of a run, oldest first; none where the gate never looked.

    Raises:
        DataError: naming the file, when one is damaged, missing or not what the next one followed.
    """
    found: list[Decision] = []
    for number, path in enumerate(sorted((run / FOLDER).glob("[0-9]*.json")), start=1):
        decision = _read(path)
        parent = found[-1].digest if found else ""
        if path.name != name_of(number) or decision.number != number:
            raise DataError(f"{run / FOLDER}: {name_of(number)} is missing, {path.name} comes next. Restore it.")
        if decision.parent != parent:
            raise DataError(
                f"{path}: it follows a decision {decision.parent[:12] or '(none)'}, the one before it is "
                f"{parent[:12] or '(none)'}: one of them was changed. Restore them."
            )
        found.append(decision)
    return found


def released(run: Path) -> Decision | None:
    """The decision that released what is released now; None: that is the base.

    Raises:
        DataError: as `decisions` does.
    """
    moves = [decision for decision in decisions(run) if decision.moved]
    return moves[-1] if moves and moves[-1].adapter is not None else None


def write(run: Path, before: list[Decision], **facts: Any) -> Decision:
    """Write the next decision, durably. The run's lock must be held.

    Args:
        run: its folder.
        before: all decisions so far.
        facts: the fields of the decision but for number, parent, time and digest.

    Raises:
        DataError: when its file is there already.
    """
    draft = Decision(number=len(before) + 1, parent=before[-1].digest if before else "", at=now(), digest="", **facts)
    decision = draft.model_copy(update={"digest": draft.own_digest()})
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    path = folder / name_of(decision.number)
    data = (json.dumps(json.loads(canonical_json(decision.model_dump(mode="json"))), indent=1) + "\n").encode()
    swap(path, data)
    temporary = folder / f".{path.name}.tmp"
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)  # unlike a rename it never replaces a file
    except FileExistsError:
        raise DataError(f"{path} is there already: another process writes decisions of this run") from None
    finally:
        temporary.unlink()
    return decision


def now() -> str:
    """The time of a record."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def name_of(number: int) -> str:
    """File name of a decision."""
    return f"{number:04d}.json"


def _read(path: Path) -> Decision:
    try:
        decision = Decision.model_validate(read_json(path))
    except (ValueError, ValidationError) as error:
        raise DataError(f"{path}: not a decision of this release ({str(error).splitlines()[0]})") from None
    if decision.digest != decision.own_digest():
        raise DataError(
            f"{path}: its digest is {decision.digest[:12]}, its content's is {decision.own_digest()[:12]}: "
            "it was changed. Restore it."
        )
    return decision
