"""The LM calls of an optimizer: an equal call has an equal answer, and is made once.

A call is equal to another if the LM, the messages and the sampling are, and for draws also the seed, which follows
from the example and from the call's place in its program run. So answers do not depend on threads or on the order of
trials, and every candidate is scored with the same draws.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field

from schemas.canonical import digest
from stages.engines.batcher import Batcher
from stages.engines.endpoint import Answering
from stages.engines.pending import Clock
from stages.engines.signals import RunEnded
from stages.programs.recorder import Record, Recorder
from stages.programs.session import Caller, Reply, Session
from stages.prompting.memory import Answer, Memory

Ask = Callable[[Record], "Future[Reply]"]


@dataclass
class Tally:
    """The calls and program runs of one purpose: of a trial, of making demonstrations, of writing instructions."""

    calls: int = 0
    new: list[str] = field(default_factory=list)
    """Keys of the calls that were asked for the first time, as if no earlier process had been."""
    failed: int = 0
    """Program runs that failed."""


class Desk:
    """What the calls of one optimizer share."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.lock = threading.RLock()
        self.pending: dict[str, Future[Reply]] = {}
        self.closed = False
        self._seen: set[str] = set()

    def count(self, key: str, tally: Tally) -> None:
        """Count a call; the desk's lock is held."""
        tally.calls += 1
        if key not in self._seen:
            self._seen.add(key)
            tally.new.append(key)


class DeskCaller(Caller):
    """A `Caller` whose equal calls are made once."""

    def __init__(
        self, session: Session, batcher: Batcher, clock: Clock, *, seed: int, desk: Desk, tally: Tally
    ) -> None:
        super().__init__(session, batcher, Recorder("prompts"), clock, seed)
        self._desk, self._tally = desk, tally

    def _ask_engine(self, record: Record) -> Future[Reply]:
        return self._once(record, super()._ask_engine)

    def _ask_endpoint(self, record: Record, endpoint: Answering) -> Future[Reply]:
        ask = super()._ask_endpoint
        return self._once(record, lambda record: ask(record, endpoint))

    def _once(self, record: Record, ask: Ask) -> Future[Reply]:
        desk, key = self._desk, self._key(record)
        with desk.lock:
            if desk.closed:
                raise RunEnded
            desk.count(key, self._tally)
            if (known := desk.memory.get(key)) is not None:
                return self._known(record, known)
            if key in desk.pending:
                return self._along(record, desk.pending[key])
            reply: Future[Reply] = Future()
            desk.pending[key] = reply
            ask(record).add_done_callback(lambda done: self._learn(key, record, done, reply))
            return reply

    def _key(self, record: Record) -> str:
        # Greedy decoding draws nothing. An endpoint's may, whatever it is told.
        seed = None if self.repeats(record) else self.seed_of(record)
        return digest([record.lm, record.messages, asdict(record.sampling), seed])

    def _known(self, record: Record, answer: Answer) -> Future[Reply]:
        record.answer.update(completion=answer.text, finish_reason=answer.finish_reason)
        reply: Future[Reply] = Future()
        reply.set_result(Reply(answer.text, answer.finish_reason))
        return reply

    def _along(self, record: Record, other: Future[Reply]) -> Future[Reply]:
        """The reply to an equal call that is pending."""
        reply: Future[Reply] = Future()

        def settle(done: Future[Reply]) -> None:
            self.clock.resume()
            if done.exception() is None:
                found = done.result()
                record.answer.update(completion=found.text, finish_reason=found.finish_reason)
            _pass_on(done, reply)

        self.clock.pause()
        other.add_done_callback(settle)
        return reply

    def _learn(self, key: str, record: Record, done: Future[Reply], reply: Future[Reply]) -> None:
        """Keep an answer, and only then hand it to whoever waits: figures of a trial need all of its answers."""
        with self._desk.lock:
            if done.exception() is None:
                self._desk.memory.add(key, _answer(record, done.result()))
            del self._desk.pending[key]
        _pass_on(done, reply)


def _pass_on(done: Future[Reply], reply: Future[Reply]) -> None:
    if (error := done.exception()) is not None:
        reply.set_exception(error)
    else:
        reply.set_result(done.result())


def _answer(record: Record, reply: Reply) -> Answer:
    prompt, completion = (record.answer.get(name) for name in ("prompt_ids", "completion_ids"))
    return Answer(
        reply.text,
        reply.finish_reason,
        None if prompt is None else len(prompt),
        None if completion is None else len(completion),
    )
