"""The capture helper: what a program makes once, and begins its runs with."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import util as processes
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import pyarrow as pa

from pipeline.capture.calls import KINDS
from pipeline.capture.place import HERE, Within
from pipeline.capture.runs import Row, Run, root_row, score_row
from pipeline.capture.tally import Tally
from pipeline.capture.values import stored, text
from pipeline.capture.writer import Writer
from schemas.capture import CAPTURE, MARK
from schemas.errors import RecipeError

Client = TypeVar("Client")
_SIZE, _ROOM = 32 << 20, 256 << 20


class Capture:
    """Writes runs of a program into a folder, for `mmgrpo ingest RECIPE FOLDER`.

    Args:
        folder: a local folder. Any number of processes may write into it.
        policy: digest of the policy that is served, as `mmgrpo lineage` names it, or one by model name where the
            program asks several LMs. Without it no row is `exact`.
        logprob_kind: what the server's log-probabilities are: `processed`, of the distribution that was sampled from
            (vLLM with `--logprobs-mode processed_logprobs`), or `raw`, of the model's logits (vLLM's default).
        runs_per_file: a file is written after so many runs,
        seconds: or when a run has waited for so long; or at 32 MiB, by `flush`, `close`, and when the process ends.

    Raises:
        RecipeError: for a folder that is an address of another kind, or another `logprob_kind`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        policy: str | Mapping[str, str] | None = None,
        logprob_kind: Literal["processed", "raw"] | None = None,
        runs_per_file: int = 1000,
        seconds: float = 60.0,
    ) -> None:
        if "://" in str(folder):
            raise RecipeError(f"capture writes into a local folder, not to {folder}: copy its files there afterwards")
        if logprob_kind not in (None, *KINDS):
            raise RecipeError(f"logprob_kind is 'processed' or 'raw', not {logprob_kind!r}")
        self.policy, self.logprob_kind = policy, logprob_kind
        self.tally = Tally()
        self._writer = Writer(
            Path(folder), self.tally, runs=max(1, runs_per_file), seconds=seconds, size=_SIZE, room=_ROOM
        )
        self._open: dict[int, Run] = {}
        atexit.register(self.close)
        self._at_process_end()
        processes.register_after_fork(self, Capture._at_process_end)

    def _at_process_end(self) -> None:
        """Processes of multiprocessing end without atexit."""
        processes.Finalize(None, self.close, exitpriority=100)

    def run(
        self,
        inputs: Any = None,
        *,
        name: str = "program",
        trace_id: str | None = None,
        example: str | None = None,
        user: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        policy: str | Mapping[str, str] | None = None,
    ) -> Run:
        """A run of the program, as a context manager.

        Args:
            inputs: the program's inputs by name: equal inputs are one example.
            name: of the program.
            trace_id: an id of your own; default: a new one.
            example: the dataset's own id of the inputs, if it has one.
            user: whom the run was for.
            metadata: anything else worth keeping.
            policy: of this run, where it is not that of all.
        """
        row = root_row(None, "program")
        with self.guarded("beginning a run"):
            about = {"inputs": self.json(inputs), "metadata": self.json(dict(metadata) if metadata else None)}
            row = root_row(trace_id, name, example=text(example), user=text(user), **about)
        run = Run(self, row, self.policy if policy is None else policy)
        self._open[id(run)] = run
        return run

    def module(self, name: str, *, invocation_index: int | None = None, attempt: int | None = None) -> Within:
        """`Run.module` of the run that this thread or task is in; outside of runs it changes nothing."""
        here = HERE.get()
        if here is not None:
            return here.run.module(name, invocation_index=invocation_index, attempt=attempt)
        return Within(None)

    def score(self, trace_id: str, name: str, value: float | bool | None, *, source: str | None = None) -> None:
        """A score of a run that has ended, also of one of another process, by its `trace_id`."""
        with self.guarded("keeping a score"):
            self.keep([score_row(trace_id, name, value, source)])

    def openai(self, client: Client, *, tokens: bool = False) -> Client:
        """A client like this OpenAI client, sync or async, whose chat completions are captured.

        Args:
            client: of the `openai` package; it is not changed.
            tokens: ask the server for token ids and log-probabilities with every call. vLLM gives them; servers that do
                not know `return_token_ids` may refuse it.

        Raises:
            RecipeError: for another kind of client.
        """
        from pipeline.capture.openai_client import captured

        return captured(self, client, tokens=tokens)

    def dspy(self, program: Any = None) -> Any:
        """A DSPy callback, for `dspy.configure(callbacks=[…])`. A program called outside of a run is a run by itself.

        Args:
            program: gives predictors their paths as names; default: the outermost module of each run.
        """
        from pipeline.capture.dspy_callback import CaptureCallback

        return CaptureCallback(self, program)

    @property
    def counts(self) -> dict[str, int]:
        """What this process captured (`runs`, `calls`, `files`, `rows`), and what went wrong (`errors`, `lost`, …)."""
        return self.tally.counts()

    def flush(self, timeout: float = 10.0) -> bool:
        """Write what has ended, and wait for it. Returns whether it is on the disk."""
        return self._writer.flush(timeout)

    def close(self, timeout: float = 10.0) -> bool:
        """Write what is left, and end. Runs that are open end with an error. Returns whether all is on the disk."""
        atexit.unregister(self.close)
        for run in list(self._open.values()):
            if run.pid == os.getpid():
                run.end("the program ended before the run did")
        return self._writer.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """What goes wrong inside is counted and logged, and the program goes on. Not of users' concern."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the user's program must not fail by it
            self.tally.failed(doing, error)

    def json(self, value: Any) -> str | None:
        """A value as JSON text; parts without such a form are counted and left out."""
        held, lost = stored(value)
        for _ in range(lost):
            self.tally.trouble("no_json_form", "a value of the program has no JSON form and is left out")
        return held

    def ended(self, run: Run) -> None:
        """A run is no longer open."""
        self._open.pop(id(run), None)

    def keep(self, rows: list[Row]) -> None:
        """Hand rows over to be written. Those that a file cannot hold are counted as errors, all of a run together."""
        names = set(CAPTURE.schema.names)
        version = {MARK: CAPTURE.version}
        plain = [{**version, "record": "span", **{name: row[name] for name in row.keys() & names}} for row in rows]
        self._writer.add(pa.Table.from_pylist(plain, schema=CAPTURE.schema))
