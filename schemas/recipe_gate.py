"""The section of the recipe that says when an adapter is released, and when a run ends for want of progress."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from schemas.sections import Positive, Section


def _a_ledger(path: str) -> str:
    if not path.endswith(".jsonl") or PurePosixPath(path).name == ".jsonl":
        raise ValueError("expected the path of a .jsonl file")
    return path


class GateSection(Section):
    """The release gate. No part of any key: training goes on from the newest adapter whatever is released."""

    rule: Literal["improves", "always", "never"] = "improves"
    """When `released` moves by itself. `improves`: the lower bound of the paired difference to the released policy, at
    the level of this look, is above 0, and every guarded part is non-inferior. `always`: to each new policy. `never`:
    by `mmgrpo release` only; the gate looks and says what it sees."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """The chance, over all looks of the ledger together, that the gate ever releases what is no improvement."""
    guards: dict[str, Annotated[float, Field(ge=0)]] = {}
    """Parts of the metric, where more is better, and how much of each may be lost at most: `{ quality = 0.02 }`."""
    slices: tuple[str, ...] | None = None
    """Metadata columns that scores are shown by; default: those with 2 to 20 distinct values."""
    min_slice_rows: Positive = 20
    """Fewest examples of a slice."""
    ledger: Annotated[str, AfterValidator(_a_ledger)] = "looks.jsonl"
    """Where looks are counted, from the run folder on: `../looks.jsonl` is shared by the runs beside it, which then
    share `alpha`. A run stays with its ledger."""
    patience: Positive | None = None
    """End the run, as a success, after so many iterations without a significant gain; default: never."""

    @model_validator(mode="after")
    def _something_can_be_gained_on(self) -> GateSection:
        if self.patience is not None and self.rule == "never":
            raise ValueError(
                "patience counts iterations since the last significant gain on what is released, which rule = 'never' "
                "leaves where it is: take another rule, or take patience out"
            )
        return self
