"""`dspy.Parallel` (and `Module.batch`) inside program runs: its items are branches of the run, each run once.

DSPy has no hook in it, and programs make one where they need it; so its `forward` is wrapped, for the whole process.
Outside program runs it stays what it was.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import dspy

from stages.programs.branches import Branch, current, in_thread_of
from stages.programs.dspy_calls import RUN

_forward = dspy.Parallel.forward


def _forward_of_a_run(self: Any, exec_pairs: Sequence[Any], num_threads: int | None = None) -> Any:
    """The items, in the order given, as branches of the run. Other than DSPy's it makes no slow item a second time.

    The lists of failed items belong to this call, not to all runs that share the object.
    """
    branch = current()
    if dspy.settings.get(RUN) is None:
        return _forward(self, exec_pairs, num_threads)
    own = copy.copy(self)
    own.timeout, own.disable_progress_bar, own.failed_examples, own.exceptions = 0, True, [], []
    return _forward(own, [_branched(module, item, branch) for module, item in exec_pairs], num_threads)


def _branched(module: Any, item: Any, branch: Branch | None) -> tuple[Callable[..., Any], Any]:
    if isinstance(item, list):  # DSPy takes a list for another Parallel only, which it tells by its class
        item = (item,)
    return _within(module, None if branch is None else branch.fork()), item


def _within(module: Any, branch: Branch | None) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with in_thread_of(branch):
            return module(*args, **kwargs)

    return run


def install() -> None:
    """Make items of `dspy.Parallel` branches of the run that they belong to."""
    dspy.Parallel.forward = _forward_of_a_run
