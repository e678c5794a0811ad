"""Reading recipes: TOML, a preset beneath, command-line settings on top, every mistake named with its field."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from schemas.errors import RecipeError
from schemas.execution import Execution
from schemas.recipe import Recipe, merge, with_preset


@dataclass(frozen=True)
class LoadedRecipe:
    """A resolved recipe and the folder that its relative paths start at."""

    recipe: Recipe
    root: Path


def load_recipe(path: Path, settings: list[str]) -> LoadedRecipe:
    """Read a recipe file and lay `section.field=value` settings over it.

    Raises:
        RecipeError: naming the file and each wrong field, with what was expected.
    """
    recipe = recipe_from(merge(read_toml(path), _parse_settings(settings)), str(path))
    return LoadedRecipe(recipe, path.resolve().parent)


def recipe_from(document: dict[str, Any], name: str) -> Recipe:
    """The recipe of a document.

    Raises:
        RecipeError: naming the document by `name`, and each wrong field, with what was expected.
    """
    try:
        return Recipe.model_validate(with_preset(document))
    except ValidationError as error:
        raise RecipeError(f"{name} is not a valid recipe:\n{describe_errors(error, Recipe)}") from None


def load_execution(path: Path | None, settings: list[str]) -> Execution:
    """Execution settings from an optional TOML file and the command line.

    Raises:
        RecipeError: naming each wrong field, or the package of a tracker that is not installed.
    """
    document = merge(read_toml(path) if path else {}, _parse_settings(settings))
    try:
        execution = Execution.model_validate(document)
    except ValidationError as error:
        where = f" of {path}" if path else ""
        raise RecipeError(f"execution settings{where} are not valid:\n{describe_errors(error, Execution)}") from None
    for name in execution.report_to:
        _check_installed(name)
    return execution


def _check_installed(tracker: str) -> None:
    try:
        distribution(tracker)
    except PackageNotFoundError:
        raise RecipeError(
            f"report_to names '{tracker}', whose package is not installed: pip install {tracker}, or leave it out"
        ) from None


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file.

    Raises:
        RecipeError: naming the file, when it is not there or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise RecipeError(
            f"{path} is a folder; name the recipe file in it, for example {path / 'recipe.toml'}"
        ) from None
    except (ValueError, RecursionError) as error:  # of its text, its code, a number of thousands of digits, its depth
        raise RecipeError(f"{path} is not TOML: {error}") from None
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}") from None


def _parse_settings(settings: list[str]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for setting in settings:
        name, sign, text = setting.partition("=")
        if not sign or not name:
            raise RecipeError(
                f"setting '{setting}': expected section.field=value, for example train.learning_rate=1e-4"
            )
        value = _parse_value(text)
        for part in reversed(name.split(".")):
            value = {part: value}
        document = merge(document, value)
    return document


def _parse_value(text: str) -> Any:
    """A TOML value; anything that is none is taken as a string, so that quotes may be left out."""
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return document["value"] if len(document) == 1 else text  # a second line would set something else, unseen


def describe_errors(error: ValidationError, model: type[BaseModel]) -> str:
    """One line for each wrong field."""
    return "\n".join(_describe_one(item, model) for item in error.errors(include_url=False))


def _describe_one(item: Any, model: type[BaseModel]) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        known = _fields_at(model, item["loc"][:-1])
        close = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else f"; known: {', '.join(known)}"
        return f"  - {where}: unknown key{hint}"
    if item["type"] == "missing":
        return f"  - {where}: required, but missing"
    # A key that was put where its variable's name belongs, or into a URL, is not repeated on screens and in logs.
    silent = isinstance(item["input"], dict) or where.endswith(("api_key_env", "server.urls"))
    got = "" if silent else f" (got {item['input']!r})"
    said = f"{item['msg'].removeprefix('Value error, ')}{got}"
    return f"  - {where}: {said}" if where else f"  - {said}"


def _fields_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    """Field names of the section at a location of the document."""
    current: Any = model
    for part in location:
        field = getattr(current, "model_fields", {}).get(part)
        if field is None:
            # A table of sections, such as `lms`: its entries share one section type.
            continue
        types = [kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type)]
        current = next((kind for kind in types if issubclass(kind, BaseModel)), current)
    return list(getattr(current, "model_fields", {}))
