"""A policy as a DSPy LM, outside of any stage: what a program that was trained is served by in the user's process."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dspy
from dspy import lm15

from schemas.canonical import digest, seed_from
from schemas.execution import Execution
from schemas.recipe_data import ModelSection
from stages.engines.interface import Adapter, Engine, Request, Result, Sampling
from stages.programs.dspy_engine import overrides_of, request_messages, response_of
from stages.programs.recorder import Messages, overridden
from stages.programs.session import Reply

QUIET_S = 0.004
"""How long calls are waited for before a batch goes out."""


@dataclass(frozen=True)
class Served:
    """Which policy is served, and how: all that is needed to open it, here or in another process."""

    model: ModelSection
    root: str
    """Folder that `model.base` starts from."""
    adapter: str | None
    """A PEFT folder; None for the base."""
    sampling: Sampling
    seed: int
    device: str = "auto"
    cache: str | None = None


@dataclass
class _Asked:
    messages: Messages
    sampling: Sampling
    seed: int
    adapter: Adapter | None
    reply: Future[Result]


class Server:
    """One base model, served by a thread that lives as long as the process. Opened by the first call."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._inbox: queue.SimpleQueue[_Asked] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._engine: Engine | None = None

    def ask(self, asked: _Asked) -> Future[Result]:
        """Hand a call in, from any thread."""
        with self._lock:
            if self._engine is None:
                self._engine = self._open()
                threading.Thread(target=self._work, args=(self._engine,), daemon=True).start()
        self._inbox.put(asked)
        return asked.reply

    def _open(self) -> Engine:
        from stages.engines.factory import engine_of
        from stages.engines.models import resolve_base

        served = self._served
        base = resolve_base(served.model.base, Path(served.root), Path(served.cache) if served.cache else None)
        return engine_of(base, served.model, Execution.model_validate({"device": served.device}))

    def _work(self, engine: Engine) -> None:
        while True:
            batch = [self._inbox.get()]
            while True:
                try:
                    batch.append(self._inbox.get(timeout=QUIET_S))
                except queue.Empty:
                    break
            _serve(engine, batch)


def _serve(engine: Engine, batch: list[_Asked]) -> None:
    try:
        requests = [
            Request(engine.encode_chat(asked.messages), asked.sampling, asked.seed, asked.adapter, asked.messages)
            for asked in batch
        ]
        results = engine.generate(requests)
    except Exception as error:  # noqa: BLE001 - goes to whoever asked
        for asked in batch:
            asked.reply.set_exception(error)
        return
    for asked, result in zip(batch, results, strict=True):
        asked.reply.set_result(result)


_SERVERS: dict[str, Server] = {}


def _server(served: Served) -> Server:
    key = digest({**served.model.model_dump(mode="json"), "root": served.root, "device": served.device})
    return _SERVERS.setdefault(key, Server(served))


class PolicyEngine:
    """A DSPy engine over one policy. Copies share it."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self._server = _server(served)
        self._adapter = _adapter(served)
        self._asked: Counter[str] = Counter()

    def complete(self, request: lm15.Request) -> lm15.Response:
        """One completion."""
        return self._response(request, self._ask(request).result())

    def __deepcopy__(self, memo: dict[int, Any]) -> PolicyEngine:
        return self

    def dump_state(self) -> dict[str, Any]:
        """What DSPy saves of it: where the model and the adapter lie, and how they are sampled."""
        return {**asdict(self.served), "model": self.served.model.model_dump(mode="json")}

    @classmethod
    def load_state(cls, state: Mapping[str, Any]) -> PolicyEngine:
        """From what DSPy saved."""
        model, sampling = ModelSection.model_validate(state["model"]), Sampling(**state["sampling"])
        return cls(Served(**{**state, "model": model, "sampling": sampling}))

    def _ask(self, request: lm15.Request) -> Future[Result]:
        messages, sampling = request_messages(request), overridden(self.served.sampling, overrides_of(request))
        what = digest([messages, asdict(sampling)])
        self._asked[what] += 1  # asked again, it draws anew
        seed = seed_from(self.served.seed, "served", what, self._asked[what])
        return self._server.ask(_Asked(messages, sampling, seed, self._adapter, Future()))

    def _response(self, request: lm15.Request, result: Result) -> lm15.Response:
        if result.finish_reason == "context_overflow":
            raise lm15.ContextLengthError(
                f"the prompt leaves no room for a completion within model.context ({self.served.model.context} tokens)"
            )
        return response_of(request, Reply(result.text, result.finish_reason))


class AsyncPolicyEngine(PolicyEngine):
    """`PolicyEngine` for `acall`."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """One completion."""
        return self._response(request, await asyncio.wrap_future(self._ask(request)))


def _adapter(served: Served) -> Adapter | None:
    from stages.engines.adapters import adapter_digest

    if served.adapter is None:
        return None
    folder = Path(served.adapter)
    return Adapter(folder, adapter_digest(folder))


def policy_lm(name: str, served: Served) -> dspy.LM:
    """An LM for DSPy programs, cached by nothing and retried by nobody."""
    return dspy.LM(
        name, engine=PolicyEngine(served), async_engine=AsyncPolicyEngine(served), cache=False, num_retries=0
    )


def served_by(lm: Any) -> Served | None:
    """The policy behind an LM; None where it is none of ours."""
    engine = getattr(lm, "engine", None)
    return engine.served if isinstance(engine, PolicyEngine) else None
