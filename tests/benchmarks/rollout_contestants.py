"""The contestants of the sampling benchmark. Each loads the base, warms up on a prompt of its own, and is timed.

`ours` is the rollout stage as a job runs it. `ceiling` is the same engine, fresh, given all prompts of `ours` at once
with no program around it; `window` gives it as many at a time as program runs were in flight. `plain` is DSPy's own
`Evaluate` with threads over the same engine, one call after another; `generate` is transformers' own, in batches.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from schemas.canonical import seed_from
from stages.engines.factory import make_engine
from stages.engines.interface import ContinuousEngine, Engine, Request, Sampling
from tests.benchmarks.rollout_meter import Meter
from tests.benchmarks.rollout_workloads import Task, read_requests, write_requests

WARM = [{"role": "user", "content": "Count from one to ten, in words, and then back again from ten to one."}]


def warm_engine(task: Task) -> Engine:
    """The engine of the task's execution settings, after a first request: kernels are made, memory is there."""
    engine = make_engine(task.loaded.recipe, task.execution, task.inputs)
    engine.generate([Request(engine.encode_chat(WARM), Sampling(max_new_tokens=8), seed) for seed in range(8)])
    return engine


def ours(task: Task, recorded: Path, folder: Path) -> dict[str, Any]:
    """The rollout stage; what its engine was asked is kept in `recorded`."""
    from pipeline.progress import Reporter
    from pipeline.store import Store
    from stages import rollout

    meter = Meter(warm_engine(task))  # the stage finds this engine where engines of a process are kept
    with Store(folder / "artifacts").begin(rollout.NAME, "0" * 64, Reporter("off")) as out:
        done = rollout.run(task.inputs, task.loaded.recipe, task.execution, out)
    figures = meter.figures(task.rollouts)
    assert meter.requests, "the rollout stage made an engine of its own"
    _refuse_failures(done["statuses"], done["first_error"])
    write_requests(recorded, meter.requests)
    return figures | {"statuses": done["statuses"], "mean_reward": done["mean_reward"]}


def _refuse_failures(statuses: dict[str, int], first_error: str | None) -> None:
    """A model of this size seldom parses; nothing but it may fail."""
    wrong = {status: count for status, count in statuses.items() if status not in {"ok", "parse_failed"} and count}
    assert not wrong, f"rollouts ended as {wrong}: {first_error}"


def ceiling(task: Task, recorded: Path, folder: Path) -> dict[str, Any]:
    """All recorded prompts in one batch."""
    del folder
    requests = read_requests(recorded)
    meter = Meter(warm_engine(task))
    meter.engine.generate(requests)
    return meter.figures(None)


def window(task: Task, recorded: Path, folder: Path) -> dict[str, Any]:
    """The recorded prompts, in the order they were asked, as many in flight as program runs were."""
    del folder
    requests = read_requests(recorded)
    meter = Meter(warm_engine(task))
    engine, width = meter.engine, task.execution.concurrency
    if isinstance(engine, ContinuousEngine):
        started = finished = 0
        while finished < len(requests):
            while started < len(requests) and started - finished < width:
                engine.add(started, requests[started])
                started += 1
            outcomes = engine.poll(0.02)
            _raise_first([outcome for _, outcome in outcomes])
            finished += len(outcomes)
    else:
        for start in range(0, len(requests), width):
            engine.generate(requests[start : start + width])
    return meter.figures(None)


def _raise_first(outcomes: Sequence[Any]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


def plain(task: Task, recorded: Path, folder: Path) -> dict[str, Any]:
    """`dspy.Evaluate` with a thread for each program run in flight, over an engine that serves one call at a time."""
    del recorded, folder
    import dspy

    from tests.benchmarks.rollout_plain import devset, plain_program, scored

    engine = warm_engine(task)
    program, adapter = plain_program(task, one_at_a_time(engine))
    evaluate = dspy.Evaluate(
        devset=devset(task), num_threads=task.execution.concurrency, max_errors=10**6, provide_traceback=False
    )
    meter = Meter(engine)
    with dspy.context(adapter=adapter, disable_history=True):
        result = evaluate(program, metric=scored(task))
    return meter.figures(task.plain_rollouts) | {"mean_reward": result.score / 100}


def one_at_a_time(engine: Engine) -> Callable[[list[dict[str, str]], Sampling], str]:
    """The engine as a function of messages and sampling, behind a lock."""
    lock, asked = threading.Lock(), Counter[str]()

    def ask(messages: list[dict[str, str]], sampling: Sampling) -> str:
        with lock:
            asked["calls"] += 1
            request = Request(engine.encode_chat(messages), sampling, seed_from("plain", asked["calls"]))
            return engine.generate([request])[0].text

    return ask


def generate(task: Task, recorded: Path, folder: Path) -> dict[str, Any]:
    """transformers' `generate` over padded batches of the recorded prompts, sorted by length, in its own memory.

    Where the plain ways make a part of the rollouts, it is every n-th of those batches.
    """
    del folder
    from tests.benchmarks.rollout_generate import GenerateEngine

    requests = read_requests(recorded)
    engine = GenerateEngine(task)
    engine.generate([Request(requests[0].prompt_ids[:24], Sampling(max_new_tokens=8), 0)] * 8)
    part = engine.every(requests, task.rollouts // task.plain_rollouts)
    meter = Meter(engine)
    started = time.perf_counter()
    engine.generate(part)
    engine.usage.seconds += time.perf_counter() - started
    return meter.figures(None)


CONTESTANTS: dict[str, tuple[Callable[[Task, Path, Path], dict[str, Any]], str]] = {
    "plain": (plain, "transformers"),
    "generate": (generate, "transformers"),
    "ours": (ours, "transformers"),
    "window": (window, "transformers"),
    "ceiling": (ceiling, "transformers"),
    "vllm": (ours, "vllm"),
    "vllm_window": (window, "vllm"),
    "vllm_ceiling": (ceiling, "vllm"),
}
"""By name: what it does, and the engine that it needs."""
