"""The student behind any OpenAI-compatible server, `vllm serve` first: several replicas, adapters loaded as needed."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, Literal

from schemas.errors import RecipeError
from schemas.execution import ServerSection
from stages.engines.feed import serve_all
from stages.engines.flights import Flights, Outcome
from stages.engines.interface import EngineUsage, Request, Result
from stages.engines.keys import key_from
from stages.engines.limits import context_of
from stages.engines.models import BaseModel, eos_ids, load_config, load_tokenizer
from stages.engines.replicas import Replica, Replicas
from stages.engines.server_adapters import ServerAdapters
from stages.engines.server_calls import Calls, NotServedError
from stages.engines.server_http import Http
from stages.engines.server_identity import Identity
from stages.engines.server_probe import Prober
from stages.engines.server_protocol import Reader
from stages.engines.texts import encode_chat

LEAST_TEMPERATURE = 0.01
"""vLLM samples at this temperature where a lower one is asked for."""


class ServerEngine:
    """See `interface.Engine` and `interface.ContinuousEngine`.

    Requests are sent by an event loop in a thread of its own. The engine itself has one caller at a time.

    Args:
        base: the base model, whose tokenizer and template make the prompts.
        context: longest prompt plus completion, in tokens; or what the model was made for, if that is less.
        section: where the servers are, and how patiently they are asked.

    Raises:
        RecipeError: when the settings are wrong, or a server that answers cannot be used.
        StageError: when none answers.
    """

    def __init__(self, base: BaseModel, context: int, section: ServerSection) -> None:
        if not section.urls:
            raise RecipeError(
                "engine = 'server' needs server.urls, for example --exec server.urls=http://127.0.0.1:8000/v1; "
                "`mmgrpo serve RECIPE` starts a server"
            )
        config = load_config(base)
        self.usage, self._adapters = EngineUsage(elsewhere=True), ServerAdapters(base, section.adapters)
        self._tokenizer, self._context = load_tokenizer(base), context_of(config, context)
        reader = Reader(self._tokenizer, eos_ids(base), config.get_text_config().vocab_size)
        prober, self._identity = Prober(reader, section.model, self._context), Identity()
        self._replicas = _replicas(section)
        lender = Replicas(self._replicas, section.patience_s)
        self._calls = Calls(lender, prober, self._adapters, section.retries, self.usage, self._identity.expected)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="server-engine", daemon=True).start()
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
        self._flights = Flights(self._loop, NotServedError)
        self._run(self._identity.meet(self._replicas, self._calls.know, section.patience_s))

    @property
    def name(self) -> str:
        """What the servers call themselves, with version and a digest of their settings where they tell."""
        return self._identity.name

    @property
    def logprob_kind(self) -> Literal["processed", "raw"] | None:
        """See `interface.Engine`."""
        return self._identity.kind

    def encode_chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        """See `interface.Engine`."""
        return encode_chat(self._tokenizer, messages)

    def expect(self, digests: Collection[str]) -> None:
        """See `interface.Engine`."""
        self._adapters.expect(digests)

    def generate(self, requests: Sequence[Request]) -> list[Result]:
        """See `interface.Engine`."""
        return serve_all(self, requests)

    def add(self, ticket: int, request: Request) -> None:
        """See `interface.ContinuousEngine`."""
        if self._identity.mode == "text":
            assert request.messages, "a server that takes text alone is sent the chat"
            if request.sampling.top_k is not None:
                raise RecipeError(
                    f"{self.name} is asked by a protocol that has no top_k: leave top_k out of the recipe"
                )
        if request.adapter is not None:
            self._adapters.check(request.adapter)
        self._flights.start(ticket, self._serve(request))

    def poll(self, wait_s: float) -> list[tuple[int, Outcome]]:
        """See `interface.ContinuousEngine`."""
        outcomes = self._flights.poll(wait_s)
        self.usage.seconds = self._flights.seconds
        return outcomes

    def cancel(self, ticket: int) -> None:
        """See `interface.ContinuousEngine`."""
        self._flights.cancel(ticket)

    def close(self) -> None:
        """Let all requests and connections go; the next request opens others. Adapters stay where they are loaded."""
        self._flights.drop_all()
        self._run(_close(self._replicas))

    async def _serve(self, request: Request) -> Result:
        if 0 < request.sampling.temperature < LEAST_TEMPERATURE:
            low = request.sampling.temperature
            raise NotServedError(f"temperature {low}: servers take 0, or {LEAST_TEMPERATURE} and more")
        limit = min(request.sampling.max_new_tokens, self._context - len(request.prompt_ids))
        if limit < 1:
            return Result((), (), "context_overflow", "")
        return await self._calls.serve(request, limit)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _replicas(section: ServerSection) -> list[Replica]:
    key, most = key_from(section.api_key_env, "server.api_key_env"), section.requests
    return [Replica(url, Http(url, key, section.timeout_s, most), most, most) for url in section.urls]


async def _close(replicas: Sequence[Replica]) -> None:
    for replica in replicas:
        await replica.http.close()
