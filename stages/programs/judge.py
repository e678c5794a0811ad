"""The LM calls of a metric: recorded apart, answered from memory where they were asked before, never the student's."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import Any

from schemas.canonical import digest, seed_from
from stages.engines.batcher import Batcher
from stages.engines.endpoint import Answering
from stages.engines.pending import Clock
from stages.programs.answers import Answer
from stages.programs.recorder import Invocation, Messages, Record, Recorder
from stages.programs.session import STUDENT, Caller, Reply, Session

Ask = Callable[[Record], "Future[Reply]"]


class JudgeCaller(Caller):
    """The LM calls of one try of a metric."""

    def __init__(self, session: Session, batcher: Batcher, rollout_id: str, clock: Clock) -> None:
        own = replace(session, parse_retries=session.judging.section.parse_retries)
        super().__init__(own, batcher, Recorder(rollout_id), clock, session.judging.seed)
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()
        self._keys: dict[Record, str] = {}

    def submit(
        self, invocation: Invocation, attempt: int, messages: Messages, lm: str, overrides: Mapping[str, Any]
    ) -> tuple[Record, Future[Reply]]:
        """As of programs. What the metric does not name is `metric.lm`.

        Raises:
            ValueError: where the recipe does not name it either. The student is no judge of itself.
        """
        judge = self.session.judging.section.lm if lm == STUDENT else lm
        if judge is None:
            known = ", ".join(sorted(self.session.lms)) or "none yet"
            raise ValueError(
                "the metric asks an LM without saying which. Set [metric] lm = NAME, or name it in the call; NAME is "
                f"that of a section [lms.NAME] (there: {known}). The student judges no run of its own."
            )
        return super().submit(invocation, attempt, messages, judge, overrides)

    def seed_of(self, record: Record) -> int:
        """The seed of a call: of what is asked, so that an equal question has an equal answer."""
        return seed_from(self._keys[record])

    def _ask_engine(self, record: Record) -> Future[Reply]:
        return self._once(record, self._key(record), super()._ask_engine)

    def _ask_endpoint(self, record: Record, endpoint: Answering) -> Future[Reply]:
        ask = super()._ask_endpoint
        return self._once(record, self._key(record), lambda record: ask(record, endpoint))

    def _key(self, record: Record) -> str:
        """What an answer depends on. The n-th draw for one question within a metric is another than the first."""
        judging = self.session.judging
        asked = digest([judging.identity.get(record.lm, record.lm), record.messages, asdict(record.sampling)])
        if self.repeats(record):
            return asked
        with self._lock:
            self._asked[asked] += 1
            return digest([asked, judging.seed, self._asked[asked]])

    def _once(self, record: Record, key: str, ask: Ask) -> Future[Reply]:
        answers = self.session.judging.answers
        self._keys[record] = key
        if answers is None:
            return ask(record)
        found = answers.claim(key)
        if isinstance(found, Answer):
            return self._known(record, found)
        if found is not None:
            return self._along(record, key, found, ask)
        reply = ask(record)
        reply.add_done_callback(lambda done: answers.settle(key, None if done.exception() else _answer(record)))
        return reply

    def _known(self, record: Record, answer: Answer) -> Future[Reply]:
        """The reply of an LM that need not be asked."""
        record.origin = self.origin_of(record) | {"engine": answer.engine}
        record.answer.update(completion=answer.completion, finish_reason=answer.finish_reason)
        reply: Future[Reply] = Future()
        reply.set_result(Reply(answer.completion, answer.finish_reason))
        return reply

    def _along(self, record: Record, key: str, other: Future[None], ask: Ask) -> Future[Reply]:
        """The reply to a question that is asked for already. Where that fails (its run may have ended), ask anew."""
        reply: Future[Reply] = Future()

        def go_on(_: Future[None]) -> None:
            self.clock.resume()
            self._once(record, key, ask).add_done_callback(lambda done: _hand_on(done, reply))

        self.clock.pause()
        other.add_done_callback(go_on)
        return reply


def _answer(record: Record) -> Answer:
    return Answer(record.answer["completion"], record.answer["finish_reason"], record.origin["engine"])


def _hand_on(done: Future[Reply], reply: Future[Reply]) -> None:
    if (error := done.exception()) is not None:
        reply.set_exception(error)
    else:
        reply.set_result(done.result())
