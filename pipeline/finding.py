"""What doctor says of one thing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's answer. `mend` is the command that helps where `fine` is false."""

    what: str
    state: str
    fine: bool = True
    mend: str = ""
