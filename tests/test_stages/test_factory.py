"""The engine of a job: made once per process, and only over the base that the run was started with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.errors import DataError
from schemas.execution import Execution
from stages.contract import Artifact, Inputs
from stages.engines import factory
from stages.engines.models import resolve_base
from tests.test_stages.programs_kit import _manifest, recipe_of, user


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inputs:
    monkeypatch.setattr(factory, "_ENGINES", {})
    base = resolve_base("tiny-random", tmp_path, tmp_path / "cache")
    digests = {"base": base.digest, "weights": base.weights, "tokenizer": base.tokenizer, "template": base.template}
    (tmp_path / "base.json").write_text(json.dumps(digests))
    return Inputs({"base": Artifact(tmp_path, _manifest("base"))}, {"policy": "p"}, tmp_path)


def execution(inputs: Inputs) -> Execution:
    return Execution(cache=str(inputs.root / "cache"), device="cpu")


def test_the_model_is_loaded_once(inputs: Inputs):
    engine = factory.make_engine(recipe_of(), execution(inputs), inputs)
    assert factory.make_engine(recipe_of(seed=1), execution(inputs), inputs) is engine
    assert engine.encode_chat(user("hi"))
    longer = recipe_of(model={"base": "tiny-random", "dtype": "float32", "context": 64})
    assert factory.make_engine(longer, execution(inputs), inputs) is not engine
    assert len(factory._ENGINES) == 1


def test_a_base_that_is_not_the_runs_own_is_refused(inputs: Inputs):
    other = recipe_of(model={"base": "tiny-random:1", "dtype": "float32", "context": 128})
    with pytest.raises(DataError, match="the model's files changed"):
        factory.make_engine(other, execution(inputs), inputs)
    assert factory._ENGINES == {}


def test_the_base_has_no_adapters(inputs: Inputs):
    assert factory.policy_adapters(inputs) == {}


def test_an_engine_with_processes_of_its_own_is_closed_when_it_is_let_go(monkeypatch: pytest.MonkeyPatch):
    class WithProcesses:
        closed = 0

        def close(self) -> None:
            self.closed += 1

    engine = WithProcesses()
    monkeypatch.setattr(factory, "_ENGINES", {("a",): engine})
    factory.release()
    factory.release()
    assert (engine.closed, factory._ENGINES) == (1, {})
