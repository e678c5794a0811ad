"""One request at one of several replicas: sent, read, and tried again where another try may fare better."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import RecipeError, StageError
from stages.engines.interface import Adapter, EngineUsage, Request, Result
from stages.engines.replicas import Lease, Replica, Replicas
from stages.engines.server_adapters import ServerAdapters
from stages.engines.server_http import Refused, Unanswered
from stages.engines.server_probe import Facts, Prober, refused_key
from stages.engines.server_protocol import chat_body, completion_body, count

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0


class NotServedError(RuntimeError):
    """A request that no replica served, after all tries."""


@dataclass
class Calls:
    """Serves requests. All of it runs in one event loop."""

    replicas: Replicas
    prober: Prober
    adapters: ServerAdapters
    retries: int
    usage: EngineUsage
    expected: Callable[[Facts], None]
    """Refuses a server that is not what the others are."""
    _random: random.Random = field(default_factory=random.Random)

    async def serve(self, request: Request, limit: int) -> Result:
        """One completion of at most `limit` tokens.

        Raises:
            NotServedError: when this request cannot be served, whatever the cause.
            RecipeError, DataError, StageError: for what ends the stage.
        """
        failed, last, answers = 0, None, -1
        while True:
            lease = await self.replicas.lend(last)
            try:
                return await self._at(lease, request, limit)
            except Unanswered as error:
                last = lease.replica
                # A server that is away costs nothing; one that dies of this very request, and answers others, does.
                away = lease.trial and answers in (-1, self.replicas.answers)
                answers = self.replicas.answers
                failed += not (error.limited or away)
                if failed > self.retries:
                    raise NotServedError(f"{last.url}, after {failed} tries: {error}") from None
                if failed and not error.limited:
                    await asyncio.sleep(self._pause(failed))
            except Refused as error:
                raise NotServedError(f"{lease.replica.url}: {error}") from None

    def _pause(self, failed: int) -> float:
        return float(min(FIRST_PAUSE_S * 2 ** (failed - 1), LONGEST_PAUSE_S) * self._random.uniform(0.5, 1.0))

    async def _at(self, lease: Lease, request: Request, limit: int) -> Result:
        """Ask the replica that was lent, and give it back."""
        try:
            result = await self._ask(lease.replica, request, limit)
        except Unanswered as error:
            lease.failed(error)
            raise
        except (Refused, RecipeError):
            lease.refused()
            raise
        except BaseException:
            lease.dropped()
            raise
        lease.succeeded()
        return result

    async def _ask(self, replica: Replica, request: Request, limit: int) -> Result:
        facts = await self.know(replica)
        model = await self.adapters.bring(replica, request.adapter) if request.adapter else facts.model
        try:
            answer = await self._send(replica, facts, request, model, limit)
        except Refused as error:
            if facts.mode == "text" and _over_context(error):
                return Result((), None, "context_overflow", "", "text")
            raise self._told(replica, request.adapter, error) from None
        reader = self.prober.reader
        text = facts.mode == "text"
        result = reader.chat(answer) if text else reader.completion(answer, request, limit, facts.mode)
        count(self.usage, answer, request, result)
        return result

    async def _send(self, replica: Replica, facts: Facts, request: Request, model: str, limit: int) -> Any:
        if facts.mode == "text":
            return await replica.http.post("/chat/completions", chat_body(request, model, limit))
        return await replica.http.post("/completions", completion_body(request, model, limit, self.prober.reader.eos))

    def _told(self, replica: Replica, adapter: Adapter | None, error: Refused) -> Exception:
        """What a refusal means: the model is gone, the key is wrong, or the request is no good."""
        if error.status in (401, 403):
            return refused_key(replica.url, error)
        if error.status != 404:
            return error
        if adapter is not None:  # it was started anew, or another client unloaded it: it is loaded again
            replica.forget()
            return Unanswered(f"it has lost an adapter ({error})")
        return StageError(f"{replica.url} no longer serves the base model ({error}): start it again as it was")

    async def know(self, replica: Replica) -> Facts:
        """What a replica is: asked once, and again after it was out of order.

        Raises:
            StageError: when it is another one than the rows say.
        """
        async with replica.lock:
            if replica.facts is None:
                facts = await self.prober.facts(replica.http, replica.url)
                self.expected(facts)
                replica.facts = facts
            return replica.facts


def _over_context(error: Refused) -> bool:
    return error.code == "context_length_exceeded" or "maximum context length" in error.said
