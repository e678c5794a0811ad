"""What tests of Ray send to its processes. They import it there by name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from schemas.errors import DataError
from stages.engines.interface import Request, Sampling
from stages.programs.desk import Shape
from stages.programs.jobs import Runs
from stages.programs.load import Program
from stages.programs.session import Session
from tests.test_stages.programs_kit import CharEngine, program_of, session_of


@dataclass(frozen=True)
class Made:
    """State of an actor: a folder for marks."""

    folder: Path
    leaves: Path | None = None


def pids(state: Made, tasks: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, int]]]:
    for name, task in tasks.items():
        yield name, (task * task, os.getpid())


def slow_pids(state: Made, tasks: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, int]]]:
    for name, task in tasks.items():
        time.sleep(0.05)
        yield name, (task * task, os.getpid())


def _first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def dies_always(state: Made, tasks: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for name, task in tasks.items():
        if task == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        yield name, task


def refuses(state: Made, tasks: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    raise DataError("the file x is broken")
    yield "", 0


def defect(state: Made, tasks: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    raise ZeroDivisionError("in a program")
    yield "", 0


class Writing:
    """As the processes of an ingest: each task leaves something in a folder of the process."""

    def __init__(self, folder: Path, marks: Path) -> None:
        self.marks, self.leaves = marks, folder / uuid4().hex
        self.leaves.mkdir()


def write_or_die(state: Writing, task: int) -> int:
    """Killed in the middle of task 5, the first time that it is begun."""
    with (state.leaves / "numbers").open("a") as file:
        file.write(f"{task}\n")
    if task == 5 and _first(state.marks / "died"):
        os.kill(os.getpid(), signal.SIGKILL)
    return task * task


def square(task: int) -> int:
    return task * task


def square_or_die(folder: Path, task: int) -> int:
    if task == 2 and _first(folder / "died"):
        os.kill(os.getpid(), signal.SIGKILL)
    return task * task


@dataclass(frozen=True)
class WithTable:
    """State of an actor that is sent a table."""

    table: Any


def threads_beside(held: Any, task: Any) -> tuple[int, int, int]:
    """Rows of two tables, and the threads that Polars computes with here."""
    import polars as pl

    return held.height, task.height, pl.thread_pool_size()


def threads(state: WithTable, tasks: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, int, int]]]:
    for name, task in tasks.items():
        yield name, threads_beside(state.table, task)


def told_env(state: Made, tasks: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    for name, task in tasks.items():
        yield name, os.environ.get(task)


def program() -> Program:
    def run(inputs: dict[str, Any], call: Any) -> str:
        first = call("ask", [{"role": "user", "content": inputs["x"]}])
        return str(call("tell", [{"role": "user", "content": first.text}]).text)

    return program_of(run, lambda example, output, calls: float(len(output)))


def answer(prompt: str, request: Request) -> str:
    return f"{prompt.strip()}{request.seed % 10}"


def scripted() -> Session:
    """A session whose engine answers by the prompt and the seed alone."""
    return session_of(CharEngine(answer), sampling=Sampling(temperature=1.0, max_new_tokens=16))


def broken_session() -> Session:
    raise DataError("the base model is not here")


def nothing() -> None:
    """Every machine is fine."""


RUNS = Runs(program="p", policy="q", source="student", seed=0, iteration=0, draws=(0, "sample", 0))


def killed_once(folder: Path, example: str, inputs: dict[str, Any], call: Any) -> str:
    if inputs["x"] == example and _first(folder / "died"):
        os.kill(os.getpid(), signal.SIGKILL)
    return str(call("ask", [{"role": "user", "content": inputs["x"]}]).text)


def mortal(folder: Path, example: str) -> Program:
    """A program that kills its process on one example, once."""
    return program_of(partial(killed_once, folder, example), lambda e, output, calls: float(len(output)))


def shape() -> Shape:
    from schemas.rollouts import ROLLOUTS

    return Shape(ROLLOUTS, "rollouts", RUNS.row)
