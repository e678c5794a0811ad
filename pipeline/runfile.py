"""run.json: which artifact a run chose for each stage of each iteration. Verify, report, lineage follow it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.remote.attached import swap
from schemas.canonical import canonical_json, digest
from schemas.errors import DataError
from schemas.foreign import read_json

NAME = "run.json"


class RunFile(BaseModel):
    """The state of a run. Keys are full artifact keys; a policy stands for itself by its digest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    name: str
    recipe: dict[str, Any]
    """The resolved recipe, every field."""
    setup: dict[str, str] = {}
    """Keys of the artifacts that the whole run shares: examples, program, base."""
    iterations: tuple[dict[str, str], ...] = ()
    """Per iteration, name -> key: rollout, group, logprobs.PURPOSE for each policy scored, train."""
    policies: tuple[str, ...] = ()
    """Policy digests in order: the one that iteration 0 samples from, then the one after each iteration."""
    evaluations: dict[str, dict[str, str]] = {}
    """Per split, policy digest -> key of its evaluate artifact."""
    drifts: dict[str, dict[str, str]] = {}
    """Per split, policy digest -> key of its drift artifact."""
    tests_opened: int = 0
    """How often the test split was scored."""
    ended: str | None = None
    """Why the run ended before its last iteration; null otherwise."""
    digest: str = ""

    def own_digest(self) -> str:
        """Digest of everything but this digest itself."""
        absent = set() if self.drifts else {"drifts"}  # earlier releases had none, and their digests hold
        return digest(self.model_dump(exclude={"digest", *absent}, mode="json"))


def write_run(folder: Path, run: RunFile) -> None:
    """Replace run.json atomically and durably."""
    sealed = run.model_copy(update={"digest": run.own_digest()})
    data = (canonical_json(sealed.model_dump(mode="json")) + "\n").encode()
    swap(folder / NAME, data)
    temporary = folder / f".{NAME}.tmp"
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / NAME)


def read_run(folder: Path) -> RunFile:
    """Read run.json.

    Raises:
        DataError: naming the file, when it is missing, is not JSON, has unknown fields, or its digest is wrong.
    """
    path = folder / NAME
    try:
        run = RunFile.model_validate(read_json(path))
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path}: no such file. Is {folder} a run folder? `mmgrpo run RECIPE` makes one.") from None
    except (IsADirectoryError, ValueError, ValidationError) as error:
        raise DataError(f"{path}: not a run file of this release: {error}") from None
    if run.digest != run.own_digest():
        raise DataError(
            f"{path}: digest is {run.digest[:12]}, its content gives {run.own_digest()[:12]}: it was changed."
        )
    return run
