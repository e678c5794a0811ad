"""A chat server in production, for tests: samples from the tiny base, and tells ids and log-probabilities."""

from __future__ import annotations

import threading
from typing import Any

from schemas.policies import policy_digest
from stages.engines.interface import Request, Sampling
from stages.engines.models import resolve_base
from stages.engines.transformers_engine import TransformersEngine
from tests.test_e2e.kit import ROOT


class TinySampler:
    """Answers to chat requests, sampled at temperature 1 from the base without an adapter."""

    def __init__(self) -> None:
        base = resolve_base("tiny-random", ROOT)
        self.policy = policy_digest(base.digest, {})
        self._engine = TransformersEngine(base, "float32", 128, "cpu")
        self._lock = threading.Lock()
        self._served = 0

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._served += 1
            ids = self._engine.encode_chat(body["messages"])
            sampling = Sampling(1.0, None, None, body.get("max_tokens") or 8)
            (made,) = self._engine.generate([Request(ids, sampling, self._served)])
        return {
            "text": made.text,
            "prompt_ids": list(ids),
            "ids": list(made.completion_ids),
            "logprobs": list(made.logprobs),
            "finish": made.finish_reason,
        }
