"""The recipe's section of prices: what a core, a GPU and the tokens of other people's servers cost.

Prices decide no result, so they are part of no key: change them and run again, nothing is made anew.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from schemas.sections import Section

Price = Annotated[float, Field(ge=0)]


class TokenPrice(Section):
    """What an LM that is paid by the token costs, for a million of them."""

    input: Price
    output: Price


class PricesSection(Section):
    """What things cost. A price that is not given is not known, which is not the same as 0."""

    currency: Annotated[str, Field(pattern=r"^[A-Za-z]{3}$")] = "USD"
    core_hour: Price | None = None
    """Of one processor core, busy."""
    gpu_hour: dict[str, Price] = {}
    """Of one GPU, by words of its name: `H100` is the price of an `NVIDIA H100 80GB HBM3`. Where several fit, the one
    of the most words counts."""
    lms: dict[str, TokenPrice] = {}
    """By entry of `[lms]`, where that is behind an endpoint; `student` is what `engine = "server"` serves."""
