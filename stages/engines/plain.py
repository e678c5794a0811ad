"""Sampling for every causal model that transformers runs: whole prompts, the model's own cache. Correct, not fast."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from schemas.errors import RecipeError
from stages.engines.draw import draw
from stages.engines.interface import EngineUsage
from stages.engines.rows import Row

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_ATTENTION = frozenset({"full_attention", "sliding_attention", "chunked_attention"})


def _has_state(model: PreTrainedModel) -> bool:
    """Whether a model has layers that padding would disturb: recurrences, convolutions, and whatever is not known."""
    layers = getattr(model.config, "layer_types", None) or []
    return bool(getattr(model, "_is_stateful", False)) or not _ATTENTION.issuperset(layers)


class PlainSampler:
    """Serves rows in left-padded batches; models with a recurrent state get batches of equally long prompts instead.

    Raises:
        RecipeError: for models that keep their past in another way.
    """

    def __init__(self, model: PreTrainedModel, eos: Collection[int], batch_tokens: int, usage: EngineUsage) -> None:
        self._model, self._eos, self._batch_tokens, self._usage = model, eos, batch_tokens, usage
        known = inspect.signature(model.forward).parameters
        if "past_key_values" not in known:
            kind = model.config.model_type
            raise RecipeError(
                f"models of type '{kind}' keep no past_key_values and cannot be sampled here: choose another"
            )
        self._positions = "position_ids" in known
        self._equal_lengths = _has_state(model)

    def serve(self, rows: Sequence[Row], adapter: str) -> Iterable[Row]:  # noqa: ARG002 (same call as the other sampler)
        """Complete rows with the adapter that is active now; yields the finished."""
        batch: list[Row] = []
        for row in sorted(rows, key=lambda row: (len(row.prompt), row.prompt, row.index)):
            if batch and not self._fits(batch, row):
                yield from self._batch(batch)
                batch = []
            batch.append(row)
        if batch:
            yield from self._batch(batch)

    def _fits(self, batch: list[Row], row: Row) -> bool:
        if self._equal_lengths and len(row.prompt) != len(batch[0].prompt):
            return False
        longest = max(len(row.prompt) + item.limit for item in [*batch, row])
        return longest * (len(batch) + 1) <= self._batch_tokens

    def _batch(self, rows: list[Row]) -> list[Row]:
        device = self._model.device
        longest = max(len(row.prompt) for row in rows)
        padding = [longest - len(row.prompt) for row in rows]
        tokens = torch.tensor([(0,) * pad + row.prompt for pad, row in zip(padding, rows, strict=True)], device=device)
        mask = (torch.arange(longest, device=device) >= torch.tensor(padding, device=device)[:, None]).long()
        past: Any = None
        while any(row.finish is None for row in rows):
            inputs: dict[str, Any] = {"attention_mask": mask, "past_key_values": past, "logits_to_keep": 1}
            if self._positions:
                inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
            out = self._model(input_ids=tokens, use_cache=True, **inputs)
            past = out.past_key_values
            self._take(rows, out.logits[:, -1])
            tokens = torch.tensor([[row.ids[-1]] for row in rows], device=device)
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
        self._usage.batches += 1
        self._usage.prefilled_tokens += sum(len(row.prompt) for row in rows)
        self._usage.completion_tokens += sum(len(row.ids) for row in rows)
        return rows

    def _take(self, rows: list[Row], logits: torch.Tensor) -> None:
        going = [place for place, row in enumerate(rows) if row.finish is None]
        open_rows = [rows[place] for place in going]
        drawn = draw(logits[going], [row.sampling for row in open_rows], [row.uniform for row in open_rows])
        for row, token, logprob in zip(open_rows, *drawn, strict=True):
            row.take(token, logprob, self._eos)
