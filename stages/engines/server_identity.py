"""What rows say of the servers that sampled them: settled when an engine starts, and held against every replica."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from schemas.errors import StageError
from stages.engines.replicas import Replica, unreachable
from stages.engines.server_http import Unanswered
from stages.engines.server_probe import Facts, Kind
from stages.engines.server_protocol import Mode

log = logging.getLogger(__name__)

_LOOKS_S = 1.0
"""How often servers that do not answer yet are looked for at the start."""
_LESS = {
    "ids": "gives token ids without log-probabilities: rows have none, and are marked 'ids'",
    "text": "gives text alone: rows have no log-probabilities, their ids are that text in the base's tokens, and they "
    "are marked 'text'",
}
_RAW = (
    "gives log-probabilities that temperature, top_p and top_k do not change, and rows say so: start vLLM with "
    "--logprobs-mode processed_logprobs, or by `mmgrpo serve RECIPE`"
)


class Identity:
    """What all replicas of an engine have in common."""

    def __init__(self) -> None:
        self.mode: Mode | None = None
        self.kind: Kind | None = None
        self._names: set[str] = set()
        self._settled = False

    @property
    def name(self) -> str:
        """The engine's name: what each different server calls itself, and what it gives where that is not all."""
        less = "" if self.mode == "exact" else f"/{self.mode}"
        return f"server/{'+'.join(sorted(self._names))}{less}"

    def expected(self, facts: Facts) -> None:
        """Hold a replica against what is known.

        Raises:
            StageError: when rows would not be true of it.
        """
        if self.mode is None:
            self.mode, self.kind = facts.mode, facts.kind
        other = facts.name not in self._names if self._settled else False
        if other or (facts.mode, facts.kind) != (self.mode, self.kind):
            raise StageError(
                f"server.urls: one server is {facts.name} ({_gives(facts.mode, facts.kind)}), the others are "
                f"{self.name} ({_gives(self.mode, self.kind)}). Rows say what sampled them: start all servers alike, "
                "and give the same command again"
            )
        self._names.add(facts.name)

    async def meet(
        self, replicas: Sequence[Replica], know: Callable[[Replica], Awaitable[Facts]], patience_s: float
    ) -> None:
        """Ask all replicas what they are, until one at least has answered.

        Raises:
            RecipeError: when one that answers cannot be used.
            StageError: when none answers, or two differ.
        """
        until, told = time.monotonic() + patience_s, False
        while True:
            await asyncio.gather(*(_ask(replica, know) for replica in replicas))
            away = [replica for replica in replicas if replica.facts is None]
            if len(away) < len(replicas):
                break
            if time.monotonic() > until:
                raise StageError(unreachable(replicas, f"no server answers for {patience_s:g} s"))
            if not told:
                log.warning("no server answers yet; waiting for %g s: %s", patience_s, _said(away))
            told = True
            await asyncio.sleep(_LOOKS_S)
        self._settled = True
        if away:
            log.warning("used as soon as they answer: %s", _said(away))
        self._tell()

    def _tell(self) -> None:
        assert self.mode is not None
        if self.mode in _LESS:
            log.warning("%s %s", self.name, _LESS[self.mode])
        elif self.kind == "raw":
            log.warning("%s %s", self.name, _RAW)
        else:
            log.info("%s gives token ids, and the log-probabilities that they were sampled with", self.name)


async def _ask(replica: Replica, know: Callable[[Replica], Awaitable[Facts]]) -> None:
    try:
        await know(replica)
    except Unanswered as error:
        replica.circuit.said = str(error)


def _said(replicas: Sequence[Replica]) -> str:
    return "; ".join(f"{replica.url} ({replica.circuit.said})" for replica in replicas)


def _gives(mode: Mode | None, kind: Kind | None) -> str:
    if mode == "exact":
        return f"ids with {kind} log-probabilities"
    return "ids alone" if mode == "ids" else "text alone"
