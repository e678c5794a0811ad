"""What is measured in an optimizer step: sums over micro-batches, read once at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from stages.training.objective import effective_share


@dataclass
class StepSums:
    """Sums over the members (copies count as often as they occur) of one optimizer step."""

    tokens: float = 0.0
    kl_old: float = 0.0
    forward_tokens: int = 0
    log_rho: list[torch.Tensor] = field(default_factory=list)
    trl: dict[str, float] = field(default_factory=dict)
    """Token-weighted sums of the means that TRL reports for each bucket."""

    def add(self, tokens: float, kl_old: float, log_rho: torch.Tensor | None, means: dict[str, float]) -> None:
        """Add one bucket."""
        self.tokens += tokens
        self.kl_old += kl_old
        if log_rho is not None:
            self.log_rho.append(log_rho)
        for name, mean in means.items():
            self.trl[name] = self.trl.get(name, 0.0) + mean * tokens

    def mean(self, name: str) -> float | None:
        """A mean over tokens of what TRL reported, or None where this loss has no such figure."""
        return self.trl[name] / self.tokens if name in self.trl else None

    @property
    def ess(self) -> float | None:
        """Effective sample size of rho as a share, or None when mu is not known."""
        return effective_share(torch.cat(self.log_rho)) if self.log_rho else None

    def figures(self) -> dict[str, Any]:
        """The columns of the steps table that are measured here."""
        clipped = self.mean("clip_ratio/region_mean")
        return {
            "kl_old": self.kl_old / self.tokens,
            "kl_ref": self.mean("kl"),
            "entropy": self.mean("entropy"),
            "clip_share": self.mean("cispo_clip_ratio") if clipped is None else clipped,
            "ess": self.ess,
            "forward_tokens": self.forward_tokens,
        }
