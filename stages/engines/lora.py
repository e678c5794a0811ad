"""Adapters of a loaded model: read once, switched between batches, never merged into the weights.

PEFT takes seconds to put an adapter into a model, the longer the more are there. So an adapter that is no longer needed
leaves its place to the next of the same shape, whose weights are copied over its own in milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from schemas.errors import DataError
from stages.engines.adapters import CONFIG, WEIGHTS, check_adapter
from stages.engines.interface import Adapter

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from stages.engines.models import BaseModel

KEPT = 16
"""Adapters held in memory, as a policy may have one for each module; the one used longest ago makes room."""


@dataclass(frozen=True)
class _Place:
    """Where an adapter is in the model."""

    name: str
    """As PEFT knows it."""
    config: bytes
    """Its adapter_config.json."""
    tensors: dict[str, torch.Tensor]
    """Its weights in the model, by their name in a file."""


class LiveAdapters:
    """The adapters of one model. LoRA weights are held in the model's dtype, as autocast uses them in training."""

    def __init__(self, model: PreTrainedModel, base: BaseModel) -> None:
        self._model, self._base = model, base
        self._peft: Any = None
        self._places: dict[str, _Place] = {}
        """By digest, the one used last at the end."""
        self._free: list[_Place] = []
        self._made = 0
        self._active: str | None = None
        """The place that the model computes with; None for the base."""

    def expect(self, digests: Collection[str]) -> None:
        """Only these are needed from now on; the places of all others are free."""
        for digest in [digest for digest in self._places if digest not in digests]:
            self._free.append(self._places.pop(digest))

    def activate(self, adapter: Adapter | None) -> None:
        """Let the model compute with this adapter, or as the base.

        Raises:
            DataError: when the adapter is damaged or was made for another base.
        """
        if adapter is None:
            if self._active is not None:
                self._peft.base_model.disable_adapter_layers()
                self._active = None
            return
        place = self._places.pop(adapter.digest, None) or self._put(adapter.path)
        self._places[adapter.digest] = place
        if self._active != place.name:
            self._peft.base_model.enable_adapter_layers()
            self._peft.set_adapter(place.name)
            self._active = place.name

    def _put(self, folder: Path) -> _Place:
        check_adapter(folder, self._base)
        config = (folder / CONFIG).read_bytes()
        alike = next((place for place in self._free if place.config == config), None)
        if alike is not None and _overwrite(alike, folder):
            self._free.remove(alike)
            return alike
        return self._load(folder, config)

    def _load(self, folder: Path, config: bytes) -> _Place:
        from peft import PeftModel, get_peft_model_state_dict

        name, self._active = f"place{self._made}", None  # whatever PEFT makes active, the caller sets it
        options = {"adapter_name": name, "is_trainable": False, "autocast_adapter_dtype": False}
        try:
            if self._peft is None:
                self._peft = PeftModel.from_pretrained(self._model, folder, **options)
            else:
                self._peft.load_adapter(folder, **options)
        except (ValueError, RuntimeError, KeyError, TypeError) as error:
            raise DataError(f"PEFT cannot load the adapter {folder}: {error}") from error
        self._peft.eval()
        self._made += 1
        if len(self._places) + len(self._free) >= KEPT:
            old = self._free.pop(0) if self._free else self._places.pop(next(iter(self._places)))
            self._peft.delete_adapter(old.name)
        # Adapters have no embedding layers, and to look for them PEFT would ask the hub for the base's config.
        tensors = get_peft_model_state_dict(self._peft, adapter_name=name, save_embedding_layers=False)
        return _Place(name, config, tensors)


def _overwrite(place: _Place, folder: Path) -> bool:
    """Copy an adapter's weights over those of a place; False, with nothing done, where they do not match one by one."""
    import torch
    from safetensors.torch import load_file

    weights = load_file(folder / WEIGHTS)
    shapes = {name: tensor.shape for name, tensor in weights.items()}
    if shapes != {name: tensor.shape for name, tensor in place.tensors.items()}:
        return False
    with torch.no_grad():
        for name, tensor in place.tensors.items():
            tensor.copy_(weights[name])
    return True
