"""The study file: which strategies are compared on which tasks, over which seeds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from pipeline.recipes import describe_errors, read_toml
from pipeline.study.strategies import BUILT_IN, settings_of
from schemas.errors import RecipeError
from schemas.sections import Section

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.+@-]{0,63}$")]
"""Names a folder, a row or a column."""
Seed = Annotated[int, Field(ge=0, lt=2**31)]


class Task(Section):
    """A column of the table."""

    name: Name
    recipe: str
    """A recipe file, relative to the study file."""
    set: tuple[str, ...] = ()
    """Settings `section.field=value` over the recipe, as on the command line."""


class Strategy(Section):
    """A row of the table: the settings that make it. Laid over the task's."""

    name: Name
    like: str | None = None
    """A built-in strategy whose settings come first."""
    set: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _like_is_known(self) -> Strategy:
        if self.like is not None:
            settings_of(self.like, "mipro", 0)
        elif not self.set:
            raise ValueError(f"strategy '{self.name}' has neither `like` (one of {', '.join(BUILT_IN)}) nor `set`")
        return self


def _as_table(row: object) -> object:
    return {"name": row, "like": row} if isinstance(row, str) else row


Row = Annotated[Strategy, BeforeValidator(_as_table)]


class Study(Section):
    """A whole study."""

    name: Name
    seeds: tuple[Seed, ...] = Field(min_length=1)
    tasks: tuple[Task, ...] = Field(min_length=1)
    strategies: tuple[Row, ...] = Field(min_length=1)
    """Built-in names, `NAME@paper` or `NAME@unbiased` for a preset, or tables of your own. The first is what the others
    are compared with."""
    optimizer: Literal["mipro", "gepa", "bootstrap"] = "mipro"
    """What optimizes the prompts in the built-in strategies that do."""
    split: Literal["test", "dev"] = "test"
    """Which split of each recipe the table is made of. Prompts and weights are never tuned on it."""
    set: tuple[str, ...] = ()
    """Settings of all runs, below those of tasks and strategies."""

    @model_validator(mode="after")
    def _names_stand_once(self) -> Study:
        for what, names in (("seeds", self.seeds), ("tasks", [task.name for task in self.tasks])):
            _refuse_repeats(what, list(map(str, names)))
        _refuse_repeats("strategies", [strategy.name for strategy in self.strategies])
        return self


def read_study(path: Path) -> Study:
    """Read a study file.

    Raises:
        RecipeError: naming the file and each wrong field, with what was expected.
    """
    try:
        return Study.model_validate(read_toml(path))
    except ValidationError as error:
        raise RecipeError(f"{path} is not a valid study:\n{describe_errors(error, Study)}") from None


def _refuse_repeats(what: str, names: list[str]) -> None:
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"{what}: {', '.join(repeated)} stands there more than once")
