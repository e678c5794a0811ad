"""What all sections of a recipe are made of."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

LOWEST_TEMPERATURE = 1e-6
"""Below it, single precision has no quotients of log-probabilities any more; 0 itself means greedy decoding."""


def _not_almost_zero(temperature: float) -> float:
    if 0 < temperature < LOWEST_TEMPERATURE:
        raise ValueError(f"a temperature below {LOWEST_TEMPERATURE:g} overflows; 0 decodes greedily")
    return temperature


def _a_name(variable: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise ValueError("expected the name of an environment variable, not the key itself")
    return variable


Positive = Annotated[int, Field(gt=0)]
Count32 = Annotated[int, Field(gt=0, lt=2**31)]
"""A positive number that the tables can hold."""
Temperature = Annotated[float, Field(ge=0), AfterValidator(_not_almost_zero)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
VariableName = Annotated[str, AfterValidator(_a_name)]
"""The name of an environment variable that holds a secret."""


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]
"""A regular expression."""


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys forbidden, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
