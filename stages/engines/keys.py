"""Keys that stay in the environment: recipes and settings name the variable, and nothing ever writes the value."""

from __future__ import annotations

import os

from schemas.discretion import remember
from schemas.errors import RecipeError


def key_from(variable: str | None, field: str) -> str:
    """The key in an environment variable; "" where none is named.

    Args:
        variable: its name.
        field: where the name stands, for the message.

    Raises:
        RecipeError: when the environment has no such variable.
    """
    if variable is None:
        return ""
    key = os.environ.get(variable)
    if not key:
        raise RecipeError(
            f"{field}: the environment variable {variable} is not set. Set it and run again: export {variable}=…"
        )
    remember(key)
    return key
