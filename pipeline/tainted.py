"""Which of a run's artifacts hold, or learnt from, traces that were to be forgotten. They are kept from leaving it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.files import replace_file
from schemas.errors import DataError
from schemas.foreign import read_json

NAME = "tainted.json"


class Tainted(BaseModel):
    """Lies in a run's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    traces: tuple[str, ...]
    """Digests of the ids of the traces."""
    artifacts: tuple[str, ...]
    """Digests of what they reached."""
    policies: tuple[str, ...]
    """Digests of the policies that learnt from them, those made from such ones included."""
    clean: str | None
    """The last policy of the run before them."""
    successor: str | None
    """The snapshot without them, to train with instead."""
    at: str
    """When, UTC."""


def read_tainted(run: Path) -> Tainted | None:
    """What is marked in a run; None where nothing is.

    Raises:
        DataError: when the mark is damaged.
    """
    path = run / NAME
    if not path.exists():
        return None
    try:
        return Tainted.model_validate(read_json(path))
    except (ValueError, ValidationError) as error:
        raise DataError(f"{path}: not a mark of this release ({str(error).splitlines()[0]})") from None


def mark(run: Path, tainted: Tainted) -> None:
    """Mark a run, with what is marked in it already."""
    before = read_tainted(run)
    if before is not None:
        merged = {
            name: tuple(sorted({*getattr(before, name), *getattr(tainted, name)}))
            for name in ("traces", "artifacts", "policies")
        }
        clean = None if tainted.clean in before.policies else tainted.clean
        tainted = tainted.model_copy(update=merged | {"clean": clean or before.clean})
    replace_file(run / NAME, tainted.model_dump_json(indent=1) + "\n")


def refuse_tainted(run: Path, digest: str, what: str) -> None:
    """Stop before something leaves a run that traces reached which were to be forgotten.

    Args:
        run: its folder.
        digest: of an artifact or a policy.
        what: what it is, for the message.

    Raises:
        DataError: saying from where to train again.
    """
    found = read_tainted(run)
    if found is None or digest not in (*found.artifacts, *found.policies):
        return
    instead = f"set traces.snapshot to {found.successor}" if found.successor else "take traces.snapshot out"
    since = f"the last clean policy is {found.clean[:12]}" if found.clean else "no policy of this run is clean"
    raise DataError(
        f"{what} of {run} holds or learnt from traces that were to be forgotten ({found.at}); {since}. In the recipe, "
        f"{instead}, then `mmgrpo run` makes anew what they had reached"
    )
