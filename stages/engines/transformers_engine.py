"""The embedded engine: sampling with transformers in this process, on CPU or one GPU, no service."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from typing import Literal

import torch
import transformers

from stages.engines.interface import Adapter, EngineUsage, Request, Result
from stages.engines.limits import context_of
from stages.engines.lora import LiveAdapters
from stages.engines.models import BaseModel, eos_ids, load_model, load_tokenizer
from stages.engines.plain import PlainSampler
from stages.engines.rows import Row, make_row
from stages.engines.serve import SharedPromptSampler, reason_against
from stages.engines.texts import encode_chat

log = logging.getLogger(__name__)


class TransformersEngine:
    """See `interface.Engine`. One caller at a time.

    Args:
        base: the base model.
        dtype: "float32" or "bfloat16".
        context: longest prompt plus completion, in tokens; or what the model was made for, if that is less.
        device: where the model runs.
        batch_tokens: most tokens whose keys and values are held at once.
    """

    logprob_kind: Literal["processed", "raw"] = "processed"

    def __init__(
        self, base: BaseModel, dtype: str, context: int, device: str = "cpu", batch_tokens: int = 65536
    ) -> None:
        self.name = f"transformers-{transformers.__version__}/{dtype}"
        self.usage = EngineUsage()
        self._tokenizer = load_tokenizer(base)
        model = load_model(base, dtype, device)
        self._context = context_of(model.config, context)
        self._adapters = LiveAdapters(model, base)
        reason = reason_against(model.config)
        if reason:
            log.warning("%s: every prompt is computed in full, which is slower (%s)", base.name, reason)
        sampler = PlainSampler if reason else SharedPromptSampler
        self._sampler = sampler(model, eos_ids(base), batch_tokens, self.usage)

    def encode_chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        """See `interface.Engine`."""
        return encode_chat(self._tokenizer, messages)

    def expect(self, digests: Collection[str]) -> None:
        """Only these adapters are asked for from now on: others may make room for new ones."""
        self._adapters.expect(digests)

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Result]:
        """See `interface.Engine`. Requests are served adapter by adapter."""
        started = time.perf_counter()
        results: list[Result] = [Result((), (), "context_overflow", "")] * len(requests)
        by_adapter: dict[str, tuple[Adapter | None, list[Row]]] = {}
        for index, request in enumerate(requests):
            if row := make_row(index, request, self._context):
                adapter = request.adapter
                by_adapter.setdefault(adapter.digest if adapter else "", (adapter, []))[1].append(row)
        for digest, (adapter, rows) in sorted(by_adapter.items()):
            self._adapters.activate(adapter)
            for row in self._sampler.serve(rows, digest):
                results[row.index] = self._result(row)
        self.usage.prompt_tokens += sum(len(row.prompt) for _, rows in by_adapter.values() for row in rows)
        self.usage.seconds += time.perf_counter() - started
        return results

    def _result(self, row: Row) -> Result:
        assert row.finish is not None
        text = self._tokenizer.decode(row.ids, skip_special_tokens=True)
        return Result(tuple(row.ids), tuple(row.logprobs), row.finish, text)
