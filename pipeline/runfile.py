"""run.json: which artifact a run chose for each stage of each iteration. Verify, report, lineage follow it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.jobs import stage_of
from pipeline.remote.attached import swap
from schemas.canonical import canonical_json, digest
from schemas.errors import DataError
from schemas.foreign import read_json
from schemas.recipe import Recipe
from schemas.shapes import SHOWN, Digest

NAME = "run.json"
SETUP = ("ingest", "examples", "program", "base", "prompts")
"""Stages that the whole run shares, in order."""
ORDER = ("prompts", "rollout", "teacher", "group", "logprobs", "train")
"""Stages of an iteration, in order."""


class RunFile(BaseModel):
    """The state of a run. Keys are full artifact keys; a policy stands for itself by its digest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    name: str
    recipe: dict[str, Any]
    """The resolved recipe, every field. That of an earlier release may be none of this one: see `resolved`."""
    setup: dict[str, Digest] = {}
    """Keys of the artifacts that the whole run shares: examples, program, base."""
    iterations: tuple[dict[str, Digest], ...] = ()
    """Per iteration, name -> key: rollout, group, logprobs.PURPOSE for each policy scored, train."""
    policies: tuple[Digest, ...] = ()
    """Policy digests in order: the one that iteration 0 samples from, then the one after each iteration."""
    evaluations: dict[str, dict[Digest, Digest]] = {}
    """Per split, policy digest -> key of its evaluate artifact."""
    drifts: dict[str, dict[Digest, Digest]] = {}
    """Per split, policy digest -> key of its drift artifact."""
    tests_opened: Annotated[int, Field(strict=True, ge=0, lt=2**31)] = 0
    """How often the test split was scored."""
    ended: str | None = None
    """Why the run ended before its last iteration; null otherwise."""
    digest: str = ""

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        made = [name for keys in self.iterations for name in keys]
        strange = [name for name in self.setup if name not in SETUP]
        strange += [name for name in made if stage_of(name) not in ORDER]
        if strange:
            raise ValueError(f"there is no stage {strange[0][:60]!r}")
        if made or self.evaluations or self.drifts:
            missing = [name for name in ("examples", "program", "base") if name not in self.setup]
            if missing:
                raise ValueError(f"setup has no {missing[0]}, from which all else is made")
        for index, keys in enumerate(self.iterations):
            if len(self.policies) <= index + ("train" in keys):
                raise ValueError(f"policies ends before iteration {index} does")
        return self

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
        raise DataError(f"{path}: not a run file of this release: {_first(error)}. Restore it.") from None
    if run.digest != run.own_digest():
        raise DataError(
            f"{path}: digest is {run.digest[:12]}, its content gives {run.own_digest()[:12]}: it was changed."
        )
    return run


def resolved(folder: Path, run: RunFile) -> Recipe:
    """The recipe of a run.

    Raises:
        DataError: naming the file, when this release does not know such a one.
    """
    try:
        return Recipe.model_validate(run.recipe)
    except ValidationError as error:
        raise DataError(
            f"{folder / NAME}: its recipe is not one of this release: {_first(error)}. Restore it."
        ) from None


def _first(error: Exception) -> str:
    """What is wrong, in a line."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False)[0]
    where = ".".join(str(part)[:SHOWN] for part in found["loc"])
    said = found["msg"].removeprefix("Value error, ")
    return f"{where}: {said} (got {str(found['input'])[:SHOWN]!r})" if where else said
