"""Sampling with shared prompts, for models whose attention is plain and full (Llama, Qwen2, Qwen3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from stages.engines import attention
from stages.engines.batches import Work, buckets, plan
from stages.engines.cascade import Decode, Memory, Prefill, Prompts
from stages.engines.draw import draw
from stages.engines.interface import EngineUsage
from stages.engines.prefix import Cluster, Ids, PrefixStore
from stages.engines.rows import Row

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_MODELS = frozenset({"llama", "qwen2", "qwen3"})
_FIXED_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Kinds of rotary positions that do not change with the length of the sequence."""
_EXTEND = 32
"""A prefix is computed further only if so many of its tokens are not known yet; else they go with each prompt."""


def reason_against(config: PreTrainedConfig) -> str | None:
    """Why a model cannot share prompts here; None when it can. An allowlist: unknown architectures cannot."""
    if config.model_type not in _MODELS:
        return f"model type '{config.model_type}'"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or []):
        return "attention with a sliding window"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    return None if rope in _FIXED_ROPE else f"rotary positions of kind '{rope}'"


class SharedPromptSampler:
    """Serves rows: prefixes once, prompts once, rows in step, finished rows leave."""

    def __init__(self, model: PreTrainedModel, eos: Collection[int], batch_tokens: int, usage: EngineUsage) -> None:
        attention.register()
        model.set_attn_implementation(attention.NAME)
        self._decoder, self._head = model.get_decoder(), model.get_output_embeddings()
        self._eos, self._batch_tokens, self._usage = eos, batch_tokens, usage
        self._device = model.device
        self.prefixes = PrefixStore(batch_tokens // 4)

    def serve(self, rows: Sequence[Row], adapter: str) -> Iterable[Row]:
        """Complete rows with the adapter that is active now (its digest, or "" for the base); yields the finished."""
        for work in plan(rows, self._batch_tokens):
            self._usage.batches += 1
            yield from self._batch(work, adapter)

    def _batch(self, work: Work, adapter: str) -> list[Row]:
        groups: list[Prompts] = []
        rows: list[Row] = []
        last: list[torch.Tensor] = []
        for cluster, part in work.parts:
            known, prefix = self._prefix(cluster, adapter)
            for prompts in buckets(list(part), known):
                memory, hidden = self._prefill([prompt[known:] for prompt in prompts], known, prefix)
                owners = [owner for owner, prompt in enumerate(prompts) for _ in part[prompt]]
                groups.append(Prompts(prefix, memory, [len(prompt) - known for prompt in prompts], owners))
                rows += [row for prompt in prompts for row in part[prompt]]
                last.append(hidden[owners])
        self._take(rows, torch.cat(last))
        self._decode(rows, Decode(groups))
        self._usage.completion_tokens += sum(len(row.ids) for row in rows)
        return rows

    def _prefix(self, cluster: Cluster, adapter: str) -> tuple[int, Memory | None]:
        """The memory of what a cluster shares, or of the known beginning of it when the rest is short."""
        prompt = cluster.prompts[0]
        usable = cluster.shared if len(cluster.prompts) > 1 else len(prompt) - 1
        known, prefix = self.prefixes.longest(adapter, prompt[:usable])
        if cluster.shared - known <= (_EXTEND if known else 0):
            return known, prefix
        more = self._prefill([prompt[known : cluster.shared]], known, prefix)[0]
        prefix = prefix.then(more) if prefix else more
        self.prefixes.put(adapter, prompt[: cluster.shared], prefix)
        return cluster.shared, prefix

    def _prefill(self, pieces: list[Ids], known: int, prefix: Memory | None) -> tuple[Memory, torch.Tensor]:
        """Memory of token sequences after a prefix of `known` tokens, and the last hidden state of each."""
        longest = max(map(len, pieces))
        self._usage.prefilled_tokens += sum(map(len, pieces))
        padded = [piece + (0,) * (longest - len(piece)) for piece in pieces]
        state = Prefill(prefix)
        hidden = self._forward(padded, [[known + place for place in range(longest)]], state)
        return state.memory, hidden[range(len(pieces)), [len(piece) - 1 for piece in pieces]]

    def _decode(self, rows: list[Row], state: Decode) -> None:
        while any(row.finish is None for row in rows):
            going = [place for place, row in enumerate(rows) if row.finish is None]
            if len(going) < len(rows) * 7 / 8:  # moving rows together costs some; a few idle ones cost less
                state.keep(going)
                rows = [rows[place] for place in going]
            state.begin_step()
            tokens = [(row.ids[-1],) for row in rows]
            hidden = self._forward(tokens, [[len(row.prompt) + state.tokens - 1] for row in rows], state)
            self._take(rows, hidden[:, 0])

    def _take(self, rows: list[Row], hidden: torch.Tensor) -> None:
        """Draw the next token of each row that is not finished from (rows, hidden size)."""
        going = [place for place, row in enumerate(rows) if row.finish is None]
        logits = self._head(hidden if len(going) == len(rows) else hidden[going])
        open_rows = [rows[place] for place in going]
        drawn = draw(logits, [row.sampling for row in open_rows], [row.uniform for row in open_rows])
        for row, token, logprob in zip(open_rows, *drawn, strict=True):
            row.take(token, logprob, self._eos)

    def _forward(self, tokens: Sequence[Ids], positions: list[list[int]], state: attention.Pass) -> torch.Tensor:
        hidden: torch.Tensor = self._decoder(
            input_ids=torch.tensor(tokens, device=self._device),
            position_ids=torch.tensor(positions, device=self._device),
            use_cache=False,
            cascade=state,
        ).last_hidden_state
        return hidden
