"""From a program in production that captures itself to an adapter trained on what it did, with mmGRPO's own ratio."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from pipeline.store import Store
from tests.test_e2e.kit import RECIPE, ROOT, mmgrpo, own_recipe, run
from tests.test_e2e.serving_kit import TinySampler
from tests.test_e2e.test_traces import ingest
from tests.test_pipeline.capture_kit import ChatServer

PLAIN = """
import sys
from openai import OpenAI
from pipeline.capture import Capture

url, folder, policy, seed = sys.argv[1:]
capture = Capture(folder, policy=policy, logprob_kind="processed")
client = capture.openai(OpenAI(base_url=url, api_key="none"), tokens=True)
for number in range(12):
    word = f"w{number % 6}"
    with capture.run({"word": word}) as run:
        with run.module("write"):
            answer = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": word}], max_tokens=8, temperature=1.0
            )
        text = answer.choices[0].message.content
        run.output(text)
        run.score("lower", sum(map(str.islower, text)) / max(len(text), 1))
try:
    with capture.run({"word": "w0"}):
        with capture.module("write"):
            client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "w0"}], max_tokens=8, temperature=1.0
            )
        raise RuntimeError("the shop burnt down")
except RuntimeError:
    pass
"""

DSPY = """
import sys
import dspy
from pipeline.capture import Capture
from stages.programs.plain_adapter import PlainAdapter
from PROGRAM import Writer

url, folder, policy, seed = sys.argv[1:]
capture = Capture(folder, policy=policy, logprob_kind="processed")
lm = dspy.LM("openai/tiny", api_base=url, api_key="none", cache=False, temperature=1.0, max_tokens=8, logprobs=True,
             extra_body={"return_token_ids": True})
dspy.configure(lm=lm, adapter=PlainAdapter(), callbacks=[capture.dspy()])
for number in range(12):
    with capture.run({"word": f"w{number % 6}"}) as run:
        text = Writer()(word=f"w{number % 6}").text
        run.output(text)
        run.score("lower", sum(map(str.islower, text)) / max(len(text), 1))
"""

DSPY_PROGRAM = """
import dspy
from stages.programs.plain_adapter import PlainAdapter

class Writer(dspy.Module):
    def __init__(self):
        super().__init__()
        self.write = dspy.Predict(dspy.Signature("word -> text", ""))
        self.adapter = PlainAdapter()

    def forward(self, word):
        return self.write(word=word)

def program():
    return Writer()

def metric(example, output, calls):
    return sum(map(str.islower, output.text)) / max(len(output.text), 1)
"""


@pytest.fixture
def served() -> Iterator[tuple[ChatServer, str]]:
    sampler = TinySampler()
    server = ChatServer(sampler)
    yield server, sampler.policy
    server.close()


def in_production(script: str, recipe: Path, url: str, folder: Path, policy: str, count: int = 1) -> None:
    """Run a program in processes of its own, at the same time."""
    (recipe.parent / "app.py").write_text(script)
    paths = f"{ROOT}{os.pathsep}{recipe.parent}"
    environment = {**os.environ, "PYTHONPATH": paths, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [sys.executable, str(recipe.parent / "app.py"), url, str(folder), policy]
    running = [subprocess.Popen([*command, str(number)], env=environment) for number in range(count)]
    assert [process.wait(300) for process in running] == [0] * count


def trained_on(recipe: Path, snapshot: Path, folder: Path) -> dict[str, object]:
    """The manifest's metrics of a train stage that took the snapshot in."""
    assert run(recipe, folder, "--set", f"traces.snapshot={snapshot}", "--set", "run.iterations=1") == 0
    trained = next(path for stage, path in Store(folder / "artifacts").all() if stage == "train")
    metrics: dict[str, object] = json.loads((trained / "manifest.json").read_text())["metrics"]
    return metrics


def test_a_captured_program_trains_an_adapter_on_exact_rows(
    tmp_path: Path, served: tuple[ChatServer, str], capsys: pytest.CaptureFixture[str]
) -> None:
    server, policy = served
    recipe = own_recipe(tmp_path / "a", recipe=RECIPE.replace("rollouts = 4\n", "rollouts = 2\n"))
    in_production(PLAIN, recipe, server.url, tmp_path / "traces", policy, count=2)
    snapshot = ingest(recipe, tmp_path / "traces")
    said = capsys.readouterr().out
    assert "26 traces: 26 rollouts of 6 examples" in said
    assert "calls by fidelity: exact 26" in said
    rollouts = pl.read_parquet(snapshot / "rollouts.parquet")
    assert set(rollouts["policy"]) == {policy}
    assert (
        rollouts.filter(pl.col("status") == "program_error")["error"].to_list()
        == ["RuntimeError: the shop burnt down"] * 2
    )
    assert rollouts.filter(pl.col("status") == "ok")["reward"].null_count() == 0
    metrics = trained_on(recipe, snapshot, tmp_path / "run")
    assert metrics["sources"]["ingest:mmgrpo_capture"]["members"] > 0  # type: ignore[index]
    assert metrics["likelihood_members"] == 0  # mu is known: these are no second-class rows
    assert mmgrpo("verify", tmp_path / "run") == 0


def test_a_captured_dspy_program_trains_an_adapter_on_exact_rows(
    tmp_path: Path, served: tuple[ChatServer, str], capsys: pytest.CaptureFixture[str]
) -> None:
    server, policy = served
    text = RECIPE.replace("rollouts = 4\n", "rollouts = 2\nparse_retries = 0\n")
    recipe = own_recipe(tmp_path / "d", program=DSPY_PROGRAM, recipe=text)
    program = next(path.stem for path in recipe.parent.glob("program_of_*.py"))
    in_production(DSPY.replace("PROGRAM", program), recipe, server.url, tmp_path / "traces", policy)
    snapshot = ingest(recipe, tmp_path / "traces")
    said = capsys.readouterr().out
    assert "12 traces: 12 rollouts of 6 examples" in said
    assert "calls by fidelity: exact 12" in said
    assert "calls by module: write 12" in said
    metrics = trained_on(recipe, snapshot, tmp_path / "run")
    assert metrics["sources"]["ingest:mmgrpo_capture"]["members"] > 0  # type: ignore[index]
    assert metrics["likelihood_members"] == 0
    # The program of the run was sent the same prompts, token for token.
    sampled = next(path for stage, path in Store(tmp_path / "run" / "artifacts").all() if stage == "rollout")
    ours = {tuple(ids) for ids in pl.read_parquet(next(sampled.rglob("invocations*.parquet")))["prompt_ids"]}
    theirs = {tuple(ids) for ids in pl.read_parquet(snapshot / "invocations.parquet")["prompt_ids"]}
    assert ours <= theirs
