"""The gradient norm of each module of a program, where the modules share an adapter.

The gradient of a step is the sum over its modules, so that one backward pass a module has to be looked at by itself. It
costs a copy of the adapter's gradient for each module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


class ModuleNorms:
    """Gradients of one optimizer step by module."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._sums: dict[str, list[torch.Tensor | None]] = {}

    @contextlib.contextmanager
    def of(self, module: str) -> Iterator[None]:
        """The gradients of the block are the module's; they are added to what the parameters had."""
        before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        yield
        own = [parameter.grad for parameter in self._parameters]
        kept = self._sums.get(module, [None] * len(own))
        self._sums[module] = [_add(one, other) for one, other in zip(kept, own, strict=True)]
        for parameter, held, new in zip(self._parameters, before, own, strict=True):
            parameter.grad = _add(held, new)

    def norms(self) -> dict[str, float]:
        """Euclidean norm of each module's gradient; empty when none was measured."""
        return {
            module: float(torch.stack([part.double().norm() for part in parts if part is not None]).norm())
            for module, parts in self._sums.items()
            if any(part is not None for part in parts)
        }


def _add(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    if one is None or other is None:
        return one if other is None else other
    return one + other
