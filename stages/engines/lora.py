"""Adapters of a loaded model: read once, switched between batches, never merged into the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schemas.errors import DataError
from stages.engines.adapters import check_adapter
from stages.engines.interface import Adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from stages.engines.models import BaseModel

KEPT = 16
"""Adapters held in memory, as a policy may have one for each module; the one used longest ago makes room."""


class LiveAdapters:
    """The adapters of one model. LoRA weights are held in the model's dtype, as autocast uses them in training."""

    def __init__(self, model: PreTrainedModel, base: BaseModel) -> None:
        self._model, self._base = model, base
        self._peft: Any = None
        self._loaded: list[str] = []

    def activate(self, adapter: Adapter | None) -> None:
        """Let the model compute with this adapter, or as the base.

        Raises:
            DataError: when the adapter is damaged or was made for another base.
        """
        if adapter is None:
            if self._peft is not None:
                self._peft.base_model.disable_adapter_layers()
            return
        if adapter.digest in self._loaded:
            self._loaded.remove(adapter.digest)
        else:
            self._load(adapter)
        self._loaded.append(adapter.digest)
        self._peft.base_model.enable_adapter_layers()
        self._peft.set_adapter(adapter.digest)

    def _load(self, adapter: Adapter) -> None:
        from peft import PeftModel

        check_adapter(adapter.path, self._base)
        options = {"adapter_name": adapter.digest, "is_trainable": False, "autocast_adapter_dtype": False}
        try:
            if self._peft is None:
                self._peft = PeftModel.from_pretrained(self._model, adapter.path, **options)
            else:
                self._peft.load_adapter(adapter.path, **options)
        except (ValueError, RuntimeError, KeyError, TypeError) as error:
            raise DataError(f"PEFT cannot load the adapter {adapter.path}: {error}") from error
        self._peft.eval()
        if len(self._loaded) >= KEPT:
            self._peft.delete_adapter(self._loaded.pop(0))
