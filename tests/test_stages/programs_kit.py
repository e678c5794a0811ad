"""What tests of programs, rollout and evaluate share: a scripted engine, a recipe, artifacts, and an `Out`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from schemas.examples import EXAMPLES, example_row
from schemas.execution import Execution
from schemas.manifest import Manifest
from schemas.parquet import write_table
from schemas.policies import POLICIES
from schemas.recipe import Recipe
from schemas.recipe_data import MetricSection, OtherLM
from schemas.table import TableSpec
from stages.contract import Artifact, Inputs
from stages.engines.interface import EngineUsage, Request, Result, Sampling
from stages.programs.answers import Answers
from stages.programs.load import Program, load_program
from stages.programs.run import Finished, Job
from stages.programs.runner import run_programs
from stages.programs.session import Judging, Session

ROLES = {"system": 1, "user": 2, "assistant": 3}


@dataclass
class CharEngine:
    """One token a character. `answer(prompt, request)` gives each completion; a string ending in "…" is cut."""

    answer: Callable[[str, Request], str]
    context: int = 100_000
    name: str = "chars"
    logprob_kind: str = "processed"
    usage: EngineUsage = field(default_factory=EngineUsage)
    batches: list[int] = field(default_factory=list)

    def encode_chat(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        ids: list[int] = []
        for message in messages:
            ids += [ROLES[message["role"]], *(ord(character) for character in message["content"]), 0]
        return (*ids, 3)

    def generate(self, requests: Sequence[Request]) -> list[Result]:
        self.batches.append(len(requests))
        return [self._one(request) for request in requests]

    def _one(self, request: Request) -> Result:
        if len(request.prompt_ids) >= self.context:
            return Result((), (), "context_overflow", "")
        text = self.answer(decode(request.prompt_ids), request)
        cut = text.endswith("…")
        ids = [ord(character) for character in text] + ([] if cut else [0])
        self.usage.completion_tokens += len(ids)
        self.usage.prompt_tokens += len(request.prompt_ids)
        return Result(tuple(ids), (-0.5,) * len(ids), "length" if cut else "stop", text)


def decode(ids: Sequence[int]) -> str:
    """The prompt's text, turns separated by newlines."""
    return "".join({0: "\n"}.get(token, chr(token) if token > 3 else "") for token in ids)


def recipe_of(factory: str = "prog:program", metric: str = "prog:metric", **sections: Any) -> Recipe:
    document: dict[str, Any] = {
        "name": "test",
        "model": {"base": "tiny-random", "dtype": "float32", "context": 128},
        "program": {"factory": factory, "metric": metric, **sections.pop("program", {})},
        "examples": {"path": "examples.parquet", "inputs": ["x"]},
        **sections,
    }
    return Recipe.model_validate(document)


def session_of(engine: Any, **changes: Any) -> Session:
    fields: dict[str, Any] = {
        "engine": engine,
        "origin": {"tokenizer": "t", "template": "c"},
        "adapters": {},
        "sampling": Sampling(temperature=1.0, max_new_tokens=16),
        "lms": {},
        "endpoints": {},
        "parse_retries": 3,
        "timeout_s": 30.0,
    }
    return Session(**{**fields, **changes})


def judging(folder: Path | None = None, **section: Any) -> dict[str, Any]:
    """What a session needs for judges."""
    answers = None if folder is None else Answers(folder)
    return {
        "lms": {"judge": OtherLM(), "wild": OtherLM(temperature=1.0)},
        "judging": Judging(MetricSection(**{"lm": "judge", **section}), 0, {}, answers),
    }


def job(index: int = 0, x: Any = "a", labels: dict[str, Any] | None = None) -> Job:
    text = None if labels is None else json.dumps(labels)
    return Job("e0", index, f"r{index}", 1000 + index, json.dumps({"x": x}), text, None)


def one(example: Any, output: Any, calls: Any, judge: Any = None) -> float:
    """A metric that is ready to be called, and content with everything."""
    return 1.0


def program_of(made: Any, metric: Callable[..., Any] = lambda example, output, calls: 1.0) -> Program:
    """A program from a callable, as if it had been imported."""
    from stages.programs.load import _plain_program
    from stages.programs.metric import prepare_metric

    return _plain_program(made, None, prepare_metric(metric, {}), "test")


def run_jobs(program: Program, jobs: Sequence[Job], session: Session, concurrency: int = 8) -> list[Finished]:
    finished = list(run_programs(program, jobs, session, concurrency))
    return sorted(finished, key=lambda run: run.job.index)


def run_one(made: Any, engine: Any, metric: Callable[..., Any] = lambda e, o, c: 1.0, **session: Any) -> Finished:
    return run_jobs(program_of(made, metric), [job()], session_of(engine, **session))[0]


ASK_IN_DSPY = """
import dspy

class Ask(dspy.Module):
    def __init__(self):
        super().__init__()
        self.ask = dspy.Predict("x -> y")

    def forward(self, x):
        return self.ask(x=x)

def program():
    return Ask()

def metric(example, pred, trace=None):
    return pred.y == "v"
"""


def load_source(tmp_path: Path, source: str, **sections: Any) -> Program:
    (tmp_path / "prog.py").write_text(source)
    return load_program(recipe_of(**sections), tmp_path)


def user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


@dataclass
class FolderOut:
    """An `Out` over a folder. `fail_after` kills the stage (as a signal would) after that many commits."""

    folder: Path
    fail_after: int | None = None
    commits: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def scratch(self) -> Path:
        path = self.folder / ".scratch"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def commit_shard(self, name: str, file: Path) -> None:
        if self.fail_after is not None and len(self.commits) >= self.fail_after:
            raise KeyboardInterrupt
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
        self.commits.append(name)

    def committed(self, prefix: str = "") -> dict[str, Path]:
        files = {path.relative_to(self.folder).as_posix(): path for path in self.folder.rglob("*") if path.is_file()}
        return {name: files[name] for name in sorted(files) if name.startswith(prefix) and name[0] != "."}

    def drop(self, prefix: str) -> None:
        self.dropped.append(prefix)

    def exclude(self, reason: str, count: int = 1) -> None:
        raise AssertionError("these stages exclude nothing")

    def progress(self, done: int, total: int, unit: str, **figures: float | str) -> None:
        self.steps.append((done, total))

    def telemetry(self, **figures: float) -> None:
        assert all(value >= 0 for value in figures.values())
        self.figures |= {name: self.figures.get(name, 0.0) + value for name, value in figures.items()}


@dataclass
class Bench:
    """A recipe folder with artifacts, in which the rollout and evaluate stages run on a scripted engine."""

    root: Path
    engine: Any
    monkeypatch: pytest.MonkeyPatch
    policy: str = "p0"
    used: int = 0
    """How often an engine was made."""

    def __post_init__(self) -> None:
        import stages.programs.shards as shards

        def make(*_: Any) -> Any:
            self.used += 1
            return self.engine

        self.monkeypatch.setattr(shards, "make_engine", make)

    def examples(self, **splits: int) -> None:
        rows = [
            example_row(split, {"x": f"{split}{index}"}, {"y": str(index)}, None)
            for split, count in splits.items()
            for index in range(count)
        ]
        write_table(rows, self._folder("examples") / "examples.parquet", EXAMPLES)
        base = {"base": "b", "weights": "w", "tokenizer": "t", "template": "c"}
        (self._folder("base") / "base.json").write_text(json.dumps(base))
        self._folder("program")

    def adapter(self, policy: str, adapters: dict[str, str]) -> None:
        row = {"policy": policy, "base": "b", "adapters": json.dumps(adapters), "parent": None, "iteration": 1}
        folder = self._folder("adapter")
        write_table([row], folder / "policies.parquet", POLICIES)
        if "*" not in adapters:
            (folder / "adapters").mkdir()
            (folder / "adapters" / "modules.json").write_text(json.dumps({module: module for module in adapters}))
        self.policy = policy

    def _folder(self, role: str) -> Path:
        path = self.root / "artifacts" / role
        path.mkdir(parents=True, exist_ok=True)
        return path

    def inputs(self, **params: Any) -> Inputs:
        roles = [path.name for path in sorted((self.root / "artifacts").iterdir())]
        artifacts = {role: Artifact(self._folder(role), _manifest(role)) for role in roles}
        return Inputs(artifacts, {"policy": self.policy, **params}, self.root)

    def run(self, stage: Any, recipe: Recipe, out: FolderOut, **params: Any) -> dict[str, Any]:
        metrics: dict[str, Any] = stage.run(self.inputs(**params), recipe, Execution(concurrency=4), out)
        return metrics


def _manifest(role: str) -> Manifest:
    return Manifest(
        stage=role,
        stage_version=1,
        key="k",
        payload={},
        digest=f"digest-{role}",
        files={},
        metrics={},
        excluded={},
        provenance={},
    )


def rows_of(folder: Path, spec: TableSpec) -> list[dict[str, Any]]:
    from schemas.parquet import read_rows

    return read_rows(folder / f"{spec.name}.parquet", spec)
