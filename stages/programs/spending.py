"""Tokens by LM: what each entry of `[lms]`, and the student, was asked and answered."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

FIGURES = ("calls", "prompt_tokens", "completion_tokens", "untold_calls")
"""`untold_calls`: of which the tokens are not known. They are in neither sum."""


@dataclass
class Spending:
    """Counts calls that were answered. Safe to use from several threads."""

    _sums: dict[tuple[str, str], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, lm: str, prompt_tokens: int | None, completion_tokens: int | None) -> None:
        """Count a call."""
        known = prompt_tokens is not None and completion_tokens is not None
        figures = (1, prompt_tokens or 0, completion_tokens or 0, 0) if known else (1, 0, 0, 1)
        with self._lock:
            for name, value in zip(FIGURES, figures, strict=True):
                self._sums[lm, name] = self._sums.get((lm, name), 0) + value

    def figures(self) -> dict[str, float]:
        """What was counted so far, by the names of the telemetry: `lm.NAME.calls`, …; zeros are left out."""
        with self._lock:
            return {f"lm.{lm}.{name}": float(value) for (lm, name), value in self._sums.items() if value}
