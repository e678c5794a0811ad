"""One run of the program: its steps and LM calls are held until it ends, and then handed over whole."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pipeline.capture.calls import Settings, answered, asked
from pipeline.capture.place import HERE, Place, Within, now, strand
from pipeline.capture.values import described, finite, text, whole
from schemas.canonical import storable

if TYPE_CHECKING:
    from pipeline.capture.recorder import Capture

Row = dict[str, Any]
UNFINISHED = "not finished when the run ended"


class Run:
    """A run, from `Capture.run`. A context manager, in async programs too; any thread may use it.

    What is raised inside is the run's error and goes on its way. A run is written whole when it ends, or not at all.
    """

    def __init__(self, capture: Capture, row: Row, policy: str | Mapping[str, str] | None) -> None:
        self.trace_id: str = row["trace"]
        """For scores that come later."""
        self._capture, self._policy = capture, policy
        self._lock = threading.Lock()
        self.pid = os.getpid()
        self._root = {**row, "span": new_id(), "kind": "chain", "start": now(), "order": 0}
        self._rows: list[Row] = [self._root]
        self._last: dict[tuple[int, int], int] = {}
        self._within: Within | None = None
        self._over = False

    def __enter__(self) -> Self:
        self._within = Within(Place(self))
        self._within.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._within is not None:
            self._within.__exit__(kind, error, trace)
        self.end(error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def module(self, name: str, *, invocation_index: int | None = None, attempt: int | None = None) -> Within:
        """A context manager: LM calls inside are those of a module of the program.

        Args:
            name: the module's, as the program that is trained calls it.
            invocation_index: which of the module's calls in this run it is. Without it they are counted by their start,
                and calls that overlap are marked, since nothing tells their order.
            attempt: 1 for the first retry of that call, and so on. Without it, a call that sends the module's last
                prompt again after a failure is its next attempt.
        """
        here = HERE.get()
        parent = here.parent if here is not None and here.run is self else None
        return Within(Place(self, text(name), whole(invocation_index, 31), whole(attempt, 31), parent, now()))

    def call(
        self,
        module: str | None,
        messages: Any,
        completion: str | None = None,
        *,
        response: Any = None,
        error: BaseException | str | None = None,
        invocation_index: int | None = None,
        attempt: int | None = None,
        started: int | None = None,
        **settings: Any,
    ) -> None:
        """Write down an LM call that was made.

        Args:
            module: whose call it is, as in `module`.
            messages: the prompt as chat messages, as it was sent.
            completion: the answer's text; default: that of `response`.
            response: the server's answer, as an object or a dictionary of the chat completions API: ids,
                log-probabilities, the finish reason and tool calls are taken from it where it has them.
            error: why there is no answer.
            invocation_index: as in `module`.
            attempt: as in `module`.
            started: `pipeline.capture.place.now()` before the call. Without it the call is taken to have begun when
                this thread or task last told of something, so that calls told of by several are marked as overlapping.
            **settings: what was asked for, by its name in the API: `model`, `temperature`, `top_p`, `top_k`, `seed`,
                `max_tokens`, `tools`; or what is known of the answer: `prompt_ids`, `completion_ids`, `logprobs`,
                `logprob_kind`, `policy`, `finish_reason`, `reasoning`, `tool_calls`, `cached`.
        """
        with self._capture.guarded("writing a call down"):
            here = self._place()
            index = here.invocation_index if invocation_index is None else whole(invocation_index, 31)
            tried = here.attempt if attempt is None else whole(attempt, 31)
            place = Place(self, text(module) or here.module, index, tried, here.parent, here.since)
            row = self.begin_call(place, messages, settings, start=whole(started) or self._earliest(place))
            known = {"completion": text(completion)} if completion is not None else {}
            self.end_call(row, response, error, {**settings, **known})

    def output(self, value: Any) -> None:
        """What the program returns."""
        with self._capture.guarded("keeping the output"):
            self._root["outputs"] = self._capture.json(value)

    def score(self, name: str, value: float | bool | None, *, source: str | None = None) -> None:
        """A score of this run. The recipe says which one is the reward; None: it was made and has no number."""
        with self._capture.guarded("keeping a score"):
            row = score_row(self.trace_id, name, value, source)
            with self._lock:
                if not self._over:
                    self._rows.append(row)
                    return
            self._capture.keep([row])

    def _place(self) -> Place:
        here = HERE.get()
        return here if here is not None and here.run is self else Place(self)

    def _earliest(self, place: Place) -> int:
        begun: int = self._last.get(strand(), self._root["start"])
        return max(place.since, begun)

    def begin(self, place: Place, row: Row, start: int | None = None) -> Row:
        """A step begins. Not of users' concern."""
        made = {
            "trace": self.trace_id,
            "span": new_id(),
            "parent": place.parent or self._root["span"],
            "name": "",
            "start": now() if start is None else start,
            **row,
        }
        with self._lock:
            made["order"] = len(self._rows)
            if self._over:
                self._capture.tally.trouble("late", "a step began after its run had ended")
            else:
                self._rows.append(made)
        return made

    def begin_call(self, place: Place, messages: Any, settings: Mapping[str, Any], start: int | None = None) -> Row:
        """An LM call begins."""
        policy = settings.get("policy", self._policy)
        where: Row = {
            "kind": "llm",
            "name": "chat",
            "module": place.module,
            "invocation_index": place.invocation_index,
            "attempt": place.attempt,
        }
        request = asked(messages, settings)
        if isinstance(policy, Mapping):
            policy = policy.get(str(settings.get("model")))
        return self.begin(place, {**where, **request, "policy": text(policy)}, start)

    def end_call(
        self,
        row: Row,
        response: Any,
        error: BaseException | str | None = None,
        known: Mapping[str, Any] | None = None,
        secrets: Collection[str] = (),
    ) -> None:
        """An LM call ends, with what answered it."""
        settings = Settings(self._capture.logprob_kind, known or {})
        found = answered(response, row, settings)
        if found and not error:
            self._capture.tally.add("calls")
        self.end_step(row, found, error, secrets)

    def end_step(
        self, row: Row, found: Row, error: BaseException | str | None = None, secrets: Collection[str] = ()
    ) -> None:
        """A step ends."""
        said = described(error, secrets) if isinstance(error, BaseException) else text(error)
        with self._lock:
            if self._over:
                self._capture.tally.trouble("late", "a step ended after its run had ended")
                return
            row.update(found, end=now(), error=said)
            self._last[strand()] = row["end"]

    def end(self, error: BaseException | str | None = None) -> None:
        """The run ends, and is handed over. Steps that have not ended have failed."""
        with self._capture.guarded("ending a run"):
            said = described(error) if isinstance(error, BaseException) else text(error)
            with self._lock:
                over, self._over = self._over, True
            if not over:
                self._root.update(end=now(), error=said)
                self._capture.ended(self)
                self._hand_over()

    def _hand_over(self) -> None:
        if self.pid != os.getpid():
            self._capture.tally.trouble("other_process", "a run ended in a process that it did not begin in")
            return
        for row in self._rows:
            if row.get("record") != "score" and "end" not in row:
                row.update(end=self._root["end"], error=UNFINISHED)
        self._capture.keep(self._rows)
        self._capture.tally.add("runs")


def root_row(trace_id: str | None, name: str, **known: Any) -> Row:
    """The beginnings of a run's own row."""
    return {"trace": storable(str(trace_id)) if trace_id else uuid.uuid4().hex, "name": text(name) or "", **known}


def score_row(trace_id: Any, name: Any, value: Any, source: Any) -> Row:
    """A score as a row."""
    held = {"trace": storable(str(trace_id)), "name": text(name) or "score", "value": finite(value)}
    return {"record": "score", **held, "source": text(source)}


def new_id() -> str:
    """An id of a span: 16 hex digits."""
    return uuid.uuid4().hex[:16]
