"""A whole run whose student is behind a server: the same tables as with the embedded engine, and it trains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.costs import ledger
from schemas.parquet import read_frame
from schemas.rollouts import INVOCATIONS
from stages.engines import factory
from stages.engines.models import resolve_base
from tests.test_e2e.kit import TINY, artifact, mmgrpo
from tests.test_stages.server_kit import Dialect, KitServer

ONE = ("--iterations", "1", "--exec", "progress=off")
PRICED = ("--set", "prices.core_hour=0", "--set", "prices.lms.student={ input = 1, output = 2 }")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KitServer]:
    running = KitServer(resolve_base("tiny-random", tmp_path, None), Dialect(), "tiny")
    yield running
    factory.release()
    running.close()


def over(server: KitServer) -> tuple[str, ...]:
    return (*ONE, "--exec", "engine=server", "--exec", f"server.urls={server.url}")


def test_a_run_over_a_server_makes_the_same_rows_and_trains(server: KitServer, tmp_path: Path):
    assert mmgrpo("run", TINY, "--run-dir", tmp_path / "here", *ONE, *PRICED) == 0
    assert mmgrpo("run", TINY, "--run-dir", tmp_path / "there", *over(server), *PRICED) == 0
    assert mmgrpo("verify", tmp_path / "there") == 0
    here, there = (
        read_frame(artifact(tmp_path / name, "rollout").file("invocations.parquet"), INVOCATIONS).sort(
            "rollout_id", "call_index"
        )
        for name in ("here", "there")
    )
    assert set(there["engine"]) == {"server/vllm-0.32.0-0badcafe"}
    apart = ["engine", "sampling_logprobs"]
    assert there.drop(apart).equals(here.drop(apart))
    differences = there["sampling_logprobs"].explode() - here["sampling_logprobs"].explode()
    assert differences.abs().max() < 1e-4
    trained = artifact(tmp_path / "there", "train").manifest.metrics
    assert trained["steps"] > 0
    assert server.adapters  # the new policy was scored there
    for name, paid in (("here", False), ("there", True)):
        found = ledger(tmp_path / name)
        [row] = [row for row in found.rows if row.stage == "rollout"]
        assert row.spent.prompt_tokens
        assert row.spent.completion_tokens
        tokens = row.spent.prompt_tokens * 1 + row.spent.completion_tokens * 2
        assert row.spent.money == pytest.approx(tokens / 1e6 if paid else 0)


def test_rows_of_text_alone_are_refused_by_the_trainer_with_what_to_do(
    server: KitServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    server.dialect.ids = False
    assert mmgrpo("run", TINY, "--run-dir", tmp_path / "text", *over(server)) == 3
    told = capsys.readouterr().err
    assert "sampling_logprobs are present" in told
    assert "mmgrpo serve" in told


def test_the_command_for_a_server_names_the_newest_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "run"
    assert mmgrpo("run", TINY, "--run-dir", folder, *ONE) == 0
    monkeypatch.setenv("KIT_KEY", "sk-very-secret")
    capsys.readouterr()
    options = ("--exec", "server.api_key_env=KIT_KEY", "--exec", "vllm.tensor_parallel_size=2", "--print")
    assert mmgrpo("serve", TINY, "--run-dir", folder, "--port", "8123", *options) == 0
    told = capsys.readouterr().out
    adapter = next((folder / "artifacts" / "train").glob("*/adapter"))
    assert f"={adapter.absolute()}" in told
    assert "--lora-modules mmgrpo-" in told
    for part in ("--logprobs-mode processed_logprobs", "--port 8123", "--tensor-parallel-size 2", "--enable-lora"):
        assert part in told
    assert 'VLLM_API_KEY="$KIT_KEY"' in told
    assert "sk-very-secret" not in told
    assert ("--max-loras 17" if "--enforce-eager" in told else "--max-loras 1") in told  # empty slots on a CPU
