"""How long a prompt and its completion may be together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def context_of(config: PreTrainedConfig, context: int) -> int:
    """The recipe's context in tokens, cut to the positions that a model knows.

    Scaled rotary positions reach beyond what configs tell: these are taken at the recipe's word.
    """
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    known = getattr(config, "max_position_embeddings", None)
    return min(context, known) if known and rope in ("default", "llama3") else context
