"""`dspy.Parallel` (and `Module.batch`) inside program runs: its items are branches of the run, each run once.

DSPy has no hook in it, and programs make one where they need it; so its parts are exchanged for the whole process.
Outside program runs they do what they did. Inside, slow items are not made a second time, no progress is drawn (DSPy's
bars cannot stand several runs at once), and lists of failed items belong to their run.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

import dspy
from dspy.predict import parallel
from dspy.utils.parallelizer import ParallelExecutor

from stages.programs.branches import Branch, current, in_thread_of
from stages.programs.dspy_calls import RUN
from stages.programs.session import in_thread

_forward = dspy.Parallel.forward


class BranchExecutor(ParallelExecutor):
    """DSPy's executor of items; those of a program run are branches, in the order given."""

    def execute(self, function: Callable[[Any], Any], data: Sequence[Any]) -> list[Any]:
        """The result of each item, None where it failed.

        Raises:
            RuntimeError: when as many failed as `max_errors`.
        """
        if dspy.settings.get(RUN) is None:
            found: list[Any] = super().execute(function, data)
            return found
        results = [None] * len(data)
        for index, outcome in enumerate(self._outcomes(self._wrap_function(function), data)):
            self._process_outcome(results, index, outcome)
        if self.cancel_jobs.is_set():
            raise RuntimeError("Execution cancelled due to errors or interruption.")
        return results

    def _outcomes(self, attempt: Callable[[Any], Any], data: Sequence[Any]) -> list[Any]:
        """What became of each item; an exception is an outcome too."""
        branch, lock = current(), threading.Lock()
        waiting = enumerate([(item, None if branch is None else branch.fork()) for item in data])
        outcomes: list[Any] = [None] * len(data)

        def work() -> None:
            while True:
                with lock:
                    index, (item, own) = next(waiting, (-1, (None, None)))
                if index < 0:
                    return
                outcomes[index] = copy_context().run(_within, own, attempt, item)

        contexts = [copy_context() for _ in data[: self.num_threads]]
        for worker in [in_thread(partial(context.run, work)) for context in contexts]:
            worker.result()
        return outcomes


def _within(branch: Branch | None, attempt: Callable[[Any], Any], item: Any) -> Any:
    with in_thread_of(branch):
        return attempt(item)


def _forward_of_a_run(self: Any, exec_pairs: Sequence[Any], num_threads: int | None = None) -> Any:
    if dspy.settings.get(RUN) is None:
        return _forward(self, exec_pairs, num_threads)
    own = copy.copy(self)
    own.failed_examples, own.exceptions = [], []
    return _forward(own, exec_pairs, num_threads)


def install() -> None:
    """Make items of `dspy.Parallel` branches of the run that they belong to."""
    dspy.Parallel.forward = _forward_of_a_run
    parallel.ParallelExecutor = BranchExecutor
