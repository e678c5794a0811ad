"""transformers' own `generate` as an engine of the sampling benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

from stages.engines.interface import EngineUsage, Request, Result
from stages.engines.models import eos_ids, load_model, load_tokenizer, resolve_base
from stages.engines.texts import encode_chat
from tests.benchmarks.rollout_workloads import ROOT, Task

ROWS = 64
"""Of a batch."""


class GenerateEngine:
    """Left-padded batches of requests with the same sampling, in order of length: no row waits long for another."""

    logprob_kind: Literal["processed", "raw"] = "raw"

    def __init__(self, task: Task) -> None:
        model, execution = task.loaded.recipe.model, task.execution
        if execution.threads:
            torch.set_num_threads(execution.threads)
        base = resolve_base(model.base, ROOT, Path(execution.cache) if execution.cache else None)
        self.name = f"generate-{transformers.__version__}/{model.dtype}"
        self.usage = EngineUsage()
        self._model, self._eos = load_model(base, model.dtype), sorted(eos_ids(base))
        self._tokenizer, self._tokens = load_tokenizer(base), execution.batch_tokens

    def encode_chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        """As every engine; the benchmark itself asks recorded prompts."""
        return encode_chat(self._tokenizer, messages)

    def expect(self, digests: Any) -> None:
        """No adapters."""

    def every(self, requests: Sequence[Request], nth: int) -> list[Request]:
        """The requests of every n-th batch, from the middle of the first n on: long and short ones in proportion."""
        batches = list(self._batches(requests))
        return [request for batch in batches[min(nth // 2, len(batches) - 1) :: nth] for _, request in batch]

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request]) -> list[Result]:
        """Serve all requests; log-probabilities are not told."""
        torch.manual_seed(0)
        results: dict[int, Result] = {}
        for batch in self._batches(requests):
            results |= self._batch(batch)
        return [results[place] for place in range(len(requests))]

    def _batches(self, requests: Sequence[Request]) -> Iterator[list[tuple[int, Request]]]:
        placed = sorted(enumerate(requests), key=lambda item: (_kind(item[1]), len(item[1].prompt_ids)))
        for _, alike in groupby(placed, key=lambda item: _kind(item[1])):
            batch: list[tuple[int, Request]] = []
            for item in alike:
                width = len(item[1].prompt_ids) + item[1].sampling.max_new_tokens
                if batch and (len(batch) == ROWS or width * (len(batch) + 1) > self._tokens):
                    yield batch
                    batch = []
                batch.append(item)
            yield batch

    def _batch(self, batch: list[tuple[int, Request]]) -> dict[int, Result]:
        prompts = [request.prompt_ids for _, request in batch]
        sampling, longest = batch[0][1].sampling, max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        drawn: dict[str, Any] = {"do_sample": False}
        if sampling.temperature:
            drawn = {"do_sample": True, "temperature": sampling.temperature, "top_k": sampling.top_k or 0}
            drawn["top_p"] = sampling.top_p or 1.0
        options = {"max_new_tokens": sampling.max_new_tokens, "eos_token_id": self._eos, "pad_token_id": self._eos[0]}
        out = self._model.generate(ids, attention_mask=mask, **options, **drawn)[:, longest:].tolist()
        self.usage.batches += 1
        self.usage.prompt_tokens += sum(map(len, prompts))
        self.usage.prefilled_tokens += sum(map(len, prompts))
        return {place: self._result(row) for (place, _), row in zip(batch, out, strict=True)}

    def _result(self, row: list[int]) -> Result:
        end = next((place for place, token in enumerate(row) if token in self._eos), None)
        ids = row if end is None else row[: end + 1]
        self.usage.completion_tokens += len(ids)
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        return Result(tuple(ids), (), "length" if end is None else "stop", text)


def _kind(request: Request) -> tuple[float, float, int, int]:
    sampling = request.sampling
    return sampling.temperature, sampling.top_p or 1.0, sampling.top_k or 0, sampling.max_new_tokens
