"""Replicas of one server: which of them takes the next request, and when there is no more to hope for."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schemas.errors import StageError
from stages.engines.circuit import Circuit
from stages.engines.server_http import Http, Unanswered

if TYPE_CHECKING:
    from stages.engines.server_probe import Facts

log = logging.getLogger(__name__)

LIMITED_S = 1.0
"""How long a replica over its rate limit is left alone when it does not say so itself."""


@dataclass(eq=False)
class Replica:
    """One server. Its state belongs to the event loop."""

    url: str
    http: Http
    most: int
    """Most requests in flight: halved when the server says that it has too many, and grown again as it answers."""
    ceiling: int
    circuit: Circuit = field(default_factory=Circuit)
    flying: int = 0
    facts: Facts | None = None
    """What the server said of itself; None until it was asked, and again after it was out of order."""
    loaded: set[str] = field(default_factory=set)
    """Names of the adapters that it is known to have."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is asked about itself or given an adapter."""
    answered: int = 0

    @property
    def free(self) -> bool:
        """Whether a request may be sent to it now."""
        return self.circuit.ready and self.flying < self.most

    def forget(self) -> None:
        """It may have been started anew: what was known of it is to be asked again."""
        self.facts = None
        self.loaded.clear()

    def grow(self) -> None:
        """It answered: one more request for every full round of answers."""
        self.answered += 1
        if self.answered >= self.most:
            self.answered, self.most = 0, min(self.most + 1, self.ceiling)

    def shrink(self) -> None:
        """It has too many requests."""
        self.answered, self.most = 0, max(1, self.most // 2)


@dataclass(eq=False)
class Lease:
    """A replica lent to one request, which says how that ended: once."""

    owner: Replicas
    replica: Replica
    trial: bool
    """Whether the request tries a replica that was out of order."""

    def succeeded(self) -> None:
        """It was answered."""
        if self.trial:
            log.warning("%s answers again", self.replica.url)
        self.replica.circuit.succeeded()
        self.replica.grow()
        self.owner.answers += 1
        self._back()

    def refused(self) -> None:
        """It was refused for what the request is: the server is in order."""
        self.succeeded()

    def failed(self, error: Unanswered) -> None:
        """It was not answered.

        Raises:
            StageError: when every replica has been out of order for longer than is waited.
        """
        circuit, before = self.replica.circuit, self.replica.circuit.opened
        why = str(error) or type(error).__name__
        if error.limited:
            if circuit.ready or self.trial:  # the first to be told in this round
                self.replica.shrink()
            circuit.limited(why, LIMITED_S if error.wait_s is None else error.wait_s, trial=self.trial)
        else:
            circuit.failed(why, trial=self.trial)
        if circuit.opened > before:
            self.replica.forget()
            log.warning("%s is out of order and left alone for a moment: %s", self.replica.url, why)
        self._back()
        self.owner.refuse_to_wait()

    def dropped(self) -> None:
        """Nobody waits for the answer any more."""
        self.replica.circuit.dropped(trial=self.trial)
        self._back()

    def _back(self) -> None:
        self.replica.flying -= 1
        self.owner.serve()


class Replicas:
    """Lends replicas to requests, in the order in which they ask."""

    def __init__(self, replicas: Sequence[Replica], patience_s: float) -> None:
        self.all, self._patience_s = tuple(replicas), patience_s
        self.answers = 0
        """How many requests were answered so far."""
        self._waiting: deque[tuple[asyncio.Future[Lease], Replica | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def lend(self, last: Replica | None = None) -> Lease:
        """The least busy replica that is in order; another than `last`, where one is free."""
        waiter: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, last))
        self.serve()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # lent in the moment in which it was no longer wanted
                waiter.result().dropped()
            raise

    def serve(self) -> None:
        """Lend what is free to those who wait."""
        while self._waiting:
            waiter, last = self._waiting[0]
            free = [replica for replica in self.all if replica.free]
            if not free:
                break
            self._waiting.popleft()
            if waiter.done():  # cancelled while it waited
                continue
            chosen = min(free, key=lambda replica: (replica is last, replica.flying / replica.most))
            chosen.flying += 1
            waiter.set_result(Lease(self, chosen, chosen.circuit.begin()))
        self._look_again()

    def _look_again(self) -> None:
        """Come back when the next replica may be tried; a request that ends comes by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pauses = [replica.circuit.until - replica.circuit.clock() for replica in self.all]
        due = [pause for pause in pauses if pause > 0]
        if self._waiting and due:
            self._timer = asyncio.get_running_loop().call_later(min(due) + 0.001, self.serve)

    def refuse_to_wait(self) -> None:
        """End it when there is nothing left to hope for.

        Raises:
            StageError: naming what each replica said last, and what to do.
        """
        out = [replica.circuit.out_s for replica in self.all]
        if min(out) > self._patience_s:
            message = unreachable(self.all, f"no server has answered for {self._patience_s:g} s")
            for replica in self.all:  # another stage of this process begins to wait anew
                replica.circuit.succeeded()
            raise StageError(message)


def unreachable(replicas: Sequence[Replica], what: str) -> str:
    """The message for when no replica can be used."""
    told = "".join(f"\n  - {replica.url}: {replica.circuit.said or 'not asked yet'}" for replica in replicas)
    return (
        f"{what}:{told}\nSee whether the servers run (`mmgrpo serve RECIPE` starts one) and what they log, set "
        "server.urls to those that do, and give the same command again: what was committed is kept. "
        "server.patience_s says how long is waited."
    )
