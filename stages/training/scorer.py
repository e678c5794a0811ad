"""Runs the model on rows: per-token log-probabilities and entropies of their completions.

Two paths with equal results at dropout 0: packed (the rows' prefix tree, each distinct prefix once) and plain (padded
rows). Identical rows are computed once on both. Masks come from lengths, never from the pad id, which may equal eos.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from stages.training import flex
from stages.training.attention import NAME, TreeLayout
from stages.training.flex import FlexLayout
from stages.training.head import target_log_probs
from stages.training.members import Ids, Row
from stages.training.prefix_tree import PrefixTree, build, cut

if TYPE_CHECKING:
    from peft import PeftModel

QUERIES = 128
"""Queries of one attention block."""
TREE_MODELS = ("llama", "qwen2", "qwen3")
"""Architectures whose tokens depend on their ancestors and positions alone, tested to equal the plain path."""
_FIXED_ROPE = ("default", "linear", "llama3")


@dataclass(frozen=True)
class Scored:
    """Values of R rows, zero behind each completion's end; T is the longest completion."""

    log_probs: torch.Tensor
    """(R, T)"""
    entropy: torch.Tensor
    """(R, T) nats, without gradient."""
    mask: torch.Tensor
    """(R, T) bool."""
    forward_tokens: int
    """Token positions that the model really computed."""


@dataclass(frozen=True)
class States:
    """Hidden states at the S distinct positions that predict the P completion tokens of some rows."""

    hidden: torch.Tensor
    """(S, D)"""
    temperature: torch.Tensor
    """(S,) what the logits of each are divided by."""
    position: torch.Tensor
    """(P,) which of them predicts each token, row behind row."""
    forward_tokens: int


def why_plain(config: Any, dropout: float, wanted: bool) -> str | None:
    """Why prefixes cannot be shared, or None when they can.

    Args:
        config: the model's transformers config.
        dropout: of the adapter.
        wanted: `train.prefix_sharing`.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    if not wanted:
        return "train.prefix_sharing is off"
    if dropout > 0 or getattr(config, "attention_dropout", 0.0) > 0:
        return "dropout would differ between the rows that share a prefix"
    if config.model_type not in TREE_MODELS:
        return f"model type '{config.model_type}' is not among those it is tested on ({', '.join(TREE_MODELS)})"
    if layers != {"full_attention"}:
        return "some layers attend to a sliding window"
    if rope.get("rope_type", "default") not in _FIXED_ROPE:
        return f"rotary positions of type '{rope['rope_type']}' depend on the sequence's length"
    return None


class Scorer:
    """Scores rows with the current weights of one PEFT model."""

    def __init__(self, model: PeftModel, *, packed: bool, autocast: bool) -> None:
        self.model, self.packed, self.autocast = model, packed, autocast
        self.causal = model.get_base_model()
        self.why_blocks = flex.why_not(self.causal.config, self.device) if packed else None
        """Why the packed path attends block by block instead of by FlexAttention."""
        if packed:
            self.causal.config._attn_implementation = NAME

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.causal.device
        return device

    @property
    def head(self) -> torch.nn.Linear:
        """The output embedding."""
        head: torch.nn.Linear = self.causal.get_output_embeddings()
        return head

    @property
    def head_dtype(self) -> torch.dtype:
        """Of the products with the output embedding."""
        return torch.bfloat16 if self.autocast else self.head.weight.dtype

    def states(self, rows: Sequence[Row]) -> States:
        """What predicts the rows' completions, from one forward pass."""
        fed = [row.fed for row in rows]
        with self._precision():
            hidden, paths = self._tree(fed) if self.packed else self._padded(fed)
        nodes = np.concatenate([path[len(row.prompt) - 1 :] for path, row in zip(paths, rows, strict=True)])
        temperature = np.repeat([row.temperature for row in rows], [len(row.completion) for row in rows])
        places, position = np.unique(np.stack([nodes, temperature]), axis=1, return_inverse=True)
        scored = hidden[self._to(places[0].astype(np.int64))]
        return States(scored, self._to(places[1]), self._to(position), hidden.shape[0])

    def __call__(self, rows: Sequence[Row]) -> Scored:
        """Score rows in one forward pass; gradients and dropout as the model's mode has them."""
        states = self.states(rows)
        log_probs, entropy = target_log_probs(
            states.hidden,
            self.head,
            states.temperature,
            states.position,
            self._to(np.concatenate([row.completion for row in rows])),
            dtype=self.head_dtype,
        )
        lengths = torch.tensor([len(row.completion) for row in rows])
        mask = torch.arange(int(lengths.max()))[None, :] < lengths[:, None]
        mask = mask.to(self.device)
        empty = log_probs.new_zeros(mask.shape)
        per_token = entropy[states.position]
        return Scored(
            empty.masked_scatter(mask, log_probs), empty.masked_scatter(mask, per_token), mask, states.forward_tokens
        )

    def _tree(self, fed: list[Ids]) -> tuple[torch.Tensor, Sequence[Ids]]:
        """Hidden states (N, D) of the prefix tree's nodes, and each row's nodes."""
        tree = build(fed)
        states = self.causal.base_model(
            input_ids=self._to(tree.tokens)[None],
            position_ids=self._to(tree.depth)[None],
            use_cache=False,
            tree=self._layout(tree),
        )
        return states.last_hidden_state[0], tree.paths

    def _layout(self, tree: PrefixTree) -> TreeLayout | FlexLayout:
        dtype = torch.bfloat16 if self.autocast else self.causal.dtype
        if self.why_blocks is None:
            return FlexLayout.of(tree, dtype, self.device)
        config = self.causal.config
        share = config.num_attention_heads // config.num_key_value_heads
        return TreeLayout.of(cut(tree, QUERIES), share, dtype, self.device)

    def _padded(self, fed: list[Ids]) -> tuple[torch.Tensor, Sequence[Ids]]:
        """Hidden states (B * L, D) of the distinct rows, padded on the right, and each row's places in them.

        Causal attention never looks right, so that padding there needs no mask.
        """
        keys = [ids.tobytes() for ids in fed]
        lines = {key: line for line, key in enumerate(dict.fromkeys(keys))}
        width = max(map(len, fed))
        batch = np.zeros((len(lines), width), np.int64)
        for key, ids in zip(keys, fed, strict=True):
            batch[lines[key], : len(ids)] = ids
        states = self.causal.base_model(input_ids=self._to(batch), use_cache=False)
        paths = [lines[key] * width + np.arange(len(ids)) for key, ids in zip(keys, fed, strict=True)]
        return states.last_hidden_state.flatten(0, 1), paths

    def _to(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _precision(self) -> contextlib.AbstractContextManager[None]:
        if not self.autocast:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)
