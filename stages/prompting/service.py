"""What serves an optimizer: its program runs and its proposer's calls, by one engine, in batches."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import dspy
from dspy.teleprompt.bootstrap_trace import FailedPrediction
from dspy.utils.exceptions import ContextWindowExceededError

from schemas.canonical import digest, seed_from
from schemas.errors import StageError
from stages.engines.batcher import Batcher
from stages.engines.pending import Clock
from stages.engines.signals import LMFailure, RunEnded
from stages.programs.branches import in_thread_of
from stages.programs.dspy_calls import RUN
from stages.programs.dspy_refine import AdviceIsAModule
from stages.programs.imports import describe
from stages.programs.jsonable import json_text
from stages.programs.judge import JudgeCaller
from stages.programs.recorder import Messages
from stages.programs.rows import call_views
from stages.programs.session import STUDENT, Caller, Reply, Session, in_thread
from stages.prompting.caller import Desk, DeskCaller, Tally
from stages.prompting.memory import Memory

CALLS = "_mmgrpo_calls"
"""Attribute of a prediction: the LM calls of its run, for the metric."""
TICK_S = 0.05
PATIENCE_S = 10.0
"""How long an optimizer that is broken off may take to notice it."""


@dataclass
class Service:
    """Serves one optimizer, which works in a thread of its own; the engine works in the thread that calls `drive`."""

    session: Session
    memory: Memory
    seed: int
    proposer: str | None
    """The LM that writes instructions; None for the student."""
    statuses: Counter[str] = field(default_factory=Counter)
    """Program runs by how they ended."""
    errors: dict[str, str] = field(default_factory=dict)
    """One error of each status."""
    metric_retries: int = 0
    """Tries of the metric that failed and were made again."""
    demos: Tally = field(default_factory=Tally)
    """Runs that belong to no trial: those that demonstrations are made of."""
    proposals: Tally = field(default_factory=Tally)
    trial: Tally | None = None
    """The calls of the trial at hand."""

    def __post_init__(self) -> None:
        self._desk = Desk(self.memory)
        self._batcher = Batcher(self.session.engine)
        self._live: set[Caller] = set()
        self._asked: Counter[str] = Counter()

    def run(self, inputs: Mapping[str, Any], work: Callable[[], Any]) -> Any:
        """One run of the program on an example's inputs. What it raises is noted and goes to the optimizer."""
        tally = self.trial or self.demos
        again = (getattr(dspy.settings.lm, "kwargs", None) or {}).get("rollout_id") or 0
        seed = seed_from(self.seed, "run", digest(json.loads(json_text(inputs))), int(again))
        caller = self._caller(seed, tally)
        callbacks = [*dspy.settings.callbacks, AdviceIsAModule()]
        try:
            with in_thread_of(caller.recorder.branch), dspy.context(**{RUN: caller, "callbacks": callbacks}):
                output = work()
        except Exception as error:
            if caller.failure is not None:
                raise caller.failure from None
            self._note(tally, _status(error, caller), error)
            raise
        finally:
            self._leave(caller)
        made = output[0] if isinstance(output, tuple) and output else output
        if isinstance(made, FailedPrediction):  # DSPy's tracing caught the parse error
            known = caller.parse_errors[-1] if caller.parse_errors else ValueError("a completion did not parse")
            self._note(tally, "parse_failed", known)
            return output
        if isinstance(made, dspy.Prediction):
            setattr(made, CALLS, call_views(caller.recorder))
        with self._desk.lock:
            self.statuses["ok"] += 1
        return output

    def propose(self, messages: Messages, overrides: Mapping[str, Any]) -> Reply:
        """The proposer's answer. Asked the same again, it draws anew."""
        asked = digest([messages, dict(overrides)])
        self._asked[asked] += 1
        caller = self._caller(seed_from(self.seed, "propose", asked, self._asked[asked]), self.proposals)
        try:
            invocation = caller.recorder.open("proposer", None)
            return caller.submit(invocation, 0, messages, self.proposer or STUDENT, overrides)[1].result()
        finally:
            self._leave(caller)

    def judged(self, metric: Callable[[JudgeCaller], Any]) -> Any:
        """What a metric says, tried as often as the recipe allows. Its LM calls are served, and remembered, as ever."""
        for left in range(self.session.judging.section.retries, -1, -1):
            judge = JudgeCaller(self.session, self._batcher, "prompts", Clock())
            self._live.add(judge)
            try:
                with in_thread_of(judge.recorder.branch):
                    return metric(judge)
            except Exception:
                if not left:
                    raise
                with self._desk.lock:
                    self.metric_retries += 1
            finally:
                self._leave(judge)
        raise AssertionError("the last try raises or returns")

    def metric_failed(self, error: BaseException) -> None:
        """Note that the metric of a run which was fine until then failed."""
        with self._desk.lock:
            self.statuses["ok"] -= 1
            self._note(self.trial or self.demos, "metric_error", error)

    def drive(self, work: Callable[[], Any], tell: Callable[[], None]) -> Any:
        """Let `work` run in a thread, serve its calls from this one, and return its result.

        Raises:
            StageError: when an LM failed, or a program run took longer than the recipe allows.
        """
        done = in_thread(work)
        try:
            while not done.done():
                self._batcher.step(lambda: all(caller.clock.waiting for caller in set(self._live)), TICK_S)
                self._refuse_endless()
                tell()
            return done.result()
        except LMFailure as error:
            raise StageError(f"{error}. What was answered is kept: mend that and run again.") from error
        finally:
            self._break_off(done)
            self.memory.close()

    def _break_off(self, done: Future[Any]) -> None:
        """End what still runs of the optimizer: LM calls raise `RunEnded`, so that no thread waits for ever."""
        self._desk.closed = True
        until = time.monotonic() + PATIENCE_S
        while (self._live or not done.done()) and time.monotonic() < until:
            for caller in set(self._live):
                caller.over = True
            self._batcher.step(lambda: True, TICK_S)

    def _refuse_endless(self) -> None:
        limit = self.session.timeout_s
        if any(caller.clock.spent > limit for caller in set(self._live)):
            raise StageError(
                f"a program run took longer than {limit:g} s (program.timeout_s) without a pending LM call, and DSPy's "
                "optimizers cannot leave it behind. Mend the program or the metric, or raise program.timeout_s."
            )

    def _caller(self, seed: int, tally: Tally) -> DeskCaller:
        if self._desk.closed:
            raise RunEnded
        caller = DeskCaller(self.session, self._batcher, Clock(), seed=seed, desk=self._desk, tally=tally)
        self._live.add(caller)
        return caller

    def _leave(self, caller: Caller) -> None:
        caller.recorder.seal()
        self._live.discard(caller)

    def _note(self, tally: Tally, status: str, error: BaseException) -> None:
        with self._desk.lock:
            tally.failed += 1
            self.statuses[status] += 1
            # Not the first in time, which threads decide.
            text = describe(error)
            self.errors[status] = min(self.errors.get(status, text), text)


def _status(error: BaseException, caller: DeskCaller) -> str:
    if any(error is known for known in caller.parse_errors):
        return "parse_failed"
    return "context_overflow" if isinstance(error, ContextWindowExceededError) else "program_error"
