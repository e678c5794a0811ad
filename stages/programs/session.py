"""What all program runs of a stage share, and how one run makes an LM call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from schemas.canonical import seed_from
from schemas.recipe_data import MetricSection, OtherLM
from stages.engines.batcher import Batcher
from stages.engines.endpoint import Answering, EndpointError
from stages.engines.interface import Adapter, Engine, Sampling
from stages.engines.pending import Clock, Pending, Served
from stages.engines.signals import ContextOverflowError, LMFailure
from stages.programs.answers import Answers
from stages.programs.recorder import Invocation, Messages, Record, Recorder, overridden
from stages.programs.spending import Spending

STUDENT = "student"
SHARED = "*"


@dataclass(frozen=True)
class Judging:
    """How metrics are run, and what their LM calls depend on."""

    section: MetricSection = field(default_factory=MetricSection)
    seed: int = 0
    """Of the draws of judges."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What an LM is, by its name: all that decides its answers beside what it is asked."""
    answers: Answers | None = None
    """What was answered before; None: everything is asked."""


@dataclass(frozen=True)
class Session:
    """The engine, the policy and the settings that a stage samples with."""

    engine: Engine
    origin: Mapping[str, str]
    """Digests written into every invocation that the engine serves: `tokenizer`, `template`."""
    adapters: Mapping[str, Adapter]
    """The student's adapter by module, or under "*" for all; empty for the base."""
    sampling: Sampling
    lms: Mapping[str, OtherLM]
    endpoints: Mapping[str, Answering]
    parse_retries: int
    timeout_s: float
    judging: Judging = field(default_factory=Judging)
    spending: Spending = field(default_factory=Spending)

    @property
    def metric_timeout_s(self) -> float:
        """Longest time of one try of the metric."""
        return self.judging.section.timeout_s or self.timeout_s

    def adapter(self, module: str) -> Adapter | None:
        """The adapter that serves a module of the student."""
        return self.adapters.get(module) or self.adapters.get(SHARED)

    def defaults(self, lm: str) -> Sampling:
        """Sampling settings of an LM where the call itself says nothing.

        Raises:
            ValueError: for an LM that the recipe does not have.
        """
        if lm == STUDENT:
            return self.sampling
        if lm not in self.lms:
            known = ", ".join([STUDENT, *sorted(self.lms)])
            raise ValueError(f"there is no LM '{lm}' in the recipe; it has {known}. Add it as [lms.{lm}]")
        other = self.lms[lm]
        return Sampling(temperature=other.temperature, max_new_tokens=other.max_new_tokens)


@dataclass(frozen=True)
class Reply:
    """A completion as the caller needs it."""

    text: str
    finish_reason: str


class Caller:
    """The LM calls of one program run: made, seeded and recorded."""

    def __init__(self, session: Session, batcher: Batcher, recorder: Recorder, clock: Clock, seed: int) -> None:
        self.session, self.recorder, self.clock = session, recorder, clock
        self._batcher, self._seed = batcher, seed
        self.over = False
        """Set when the run has ended; calls still pending are not served then."""
        self.failure: BaseException | None = None
        """The first failure of an engine or endpoint: the run then does not count, however it ended."""
        self.parse_errors: list[BaseException] = []
        """Parse failures that had no retry left. If one escapes from the program, the run is parse_failed."""

    def submit(
        self, invocation: Invocation, attempt: int, messages: Messages, lm: str, overrides: Mapping[str, Any]
    ) -> tuple[Record, Future[Reply]]:
        """Make one LM call; returns its record and the future of its reply.

        The future raises `ContextOverflowError` for a prompt over the context limit, `LMFailure` when the LM failed.
        """
        sampling = overridden(self.session.defaults(lm), overrides)
        record = self.recorder.begin(invocation, attempt, lm, messages, sampling)
        if lm in self.session.endpoints:
            return record, self._ask_endpoint(record, self.session.endpoints[lm])
        return record, self._ask_engine(record)

    def repeats(self, record: Record) -> bool:
        """Whether asking again would give the same completion: the engine decodes greedily."""
        return record.lm not in self.session.endpoints and record.sampling.temperature == 0

    def seed_of(self, record: Record) -> int:
        """The seed of a call: of the run, and of the call's place in it."""
        at = record.invocation
        return seed_from(self._seed, at.module, *at.branch.path, at.rank, record.attempt)

    def origin_of(self, record: Record) -> dict[str, Any]:
        """Columns that say who serves a call."""
        session = self.session
        if (endpoint := session.endpoints.get(record.lm)) is not None:
            return {"engine": f"openai/{endpoint.model}"}
        adapter = self._adapter(record)
        return {
            **session.origin,
            "seed": self.seed_of(record),
            "engine": session.engine.name,
            "logprob_kind": session.engine.logprob_kind,
            "adapter": None if adapter is None else adapter.digest,
        }

    def _adapter(self, record: Record) -> Adapter | None:
        return self.session.adapter(record.invocation.module) if record.lm == STUDENT else None

    def _ask_engine(self, record: Record) -> Future[Reply]:
        record.origin = self.origin_of(record)
        pending = Pending(
            messages=record.messages,
            sampling=record.sampling,
            seed=record.origin["seed"],
            adapter=self._adapter(record),
            clock=self.clock,
            over=lambda: self.over,
            answered=lambda served: self._answered(record, served),
        )
        reply: Future[Reply] = Future()
        reply.set_running_or_notify_cancel()
        pending.future.add_done_callback(lambda done: self._forward(done, reply, record))
        self._batcher.submit(pending)
        return reply

    def _answered(self, record: Record, served: Served) -> None:
        record.answer.update(_engine_columns(served))
        if served.result.finish_reason != "context_overflow":  # which nothing was computed for
            ids = served.result.completion_ids
            self.session.spending.add(record.lm, len(served.prompt_ids), None if ids is None else len(ids))

    def _forward(self, done: Future[Served], reply: Future[Reply], record: Record) -> None:
        error = done.exception()
        if isinstance(error, LMFailure):
            self.failure = self.failure or error
        if error is not None:
            reply.set_exception(error)
            return
        served = done.result()
        if served.result.finish_reason == "context_overflow":
            module = record.invocation.module
            reply.set_exception(
                ContextOverflowError(
                    f"the prompt of module '{module}' has {len(served.prompt_ids)} tokens, which leaves no room for a "
                    "completion within model.context"
                )
            )
            return
        reply.set_result(Reply(served.result.text, served.result.finish_reason))

    def _ask_endpoint(self, record: Record, endpoint: Answering) -> Future[Reply]:
        record.origin = self.origin_of(record)

        def ask() -> Reply:
            try:
                told = endpoint.complete(record.messages, record.sampling)
            except EndpointError as error:
                self.failure = self.failure or LMFailure(str(error))
                raise self.failure from None
            finally:
                self.clock.resume()
            self.session.spending.add(record.lm, told.prompt_tokens, told.completion_tokens)
            record.answer.update(completion=told.text, finish_reason=told.finish_reason, fidelity="text")
            return Reply(told.text, told.finish_reason)

        self.clock.pause()
        return in_thread(ask)


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Run `work` in a daemon thread: unlike a pool's, it never keeps the process from ending."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()

    def target() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for the future
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=target, daemon=True).start()
    return future


def _engine_columns(served: Served) -> dict[str, Any]:
    result = served.result
    columns: dict[str, Any] = {"prompt_ids": list(served.prompt_ids), "finish_reason": result.finish_reason}
    if result.finish_reason == "context_overflow":
        return columns
    return {
        **columns,
        "completion": result.text,
        "completion_ids": None if result.completion_ids is None else list(result.completion_ids),
        "sampling_logprobs": None if result.logprobs is None else list(result.logprobs),
        "fidelity": result.fidelity,
    }
