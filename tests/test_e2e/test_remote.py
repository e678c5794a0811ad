"""A whole run at an S3 address: made on one machine, gone on with on another, read by every command."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from pipeline.remote.artifacts import Artifacts
from pipeline.remote.lease import VARIABLE
from tests.test_e2e.kit import ROOT, TINY, mmgrpo, own_recipe
from tests.test_e2e.test_traces import export, traces
from tests.test_pipeline.remote_kit import S3Server, use

README = (ROOT / "README.md").read_text()
SMALL = ("--set", "run.iterations=1", "--set", "rollout.examples=2", "--set", "rollout.rollouts=3")
QUICK = ("--exec", "progress=off", *SMALL, "--set", "evaluate.samples=1", "--set", "evaluate.drift=false")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    started = S3Server()
    yield started
    started.close()


@pytest.fixture
def address(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    use(monkeypatch, server)
    return f"{server.bucket(f'b-{uuid.uuid4().hex}')}/runs/tiny"


def on(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """From here on a machine with this cache."""
    monkeypatch.setenv("MMGRPO_CACHE", str(cache))


def test_a_run_is_the_same_from_every_machine(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the README shows, and then some."""
    block = next(block for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if "s3://" in block)
    shown = block.replace("s3://bucket/runs/own", address).replace("own/recipe.toml", str(TINY))
    first, second, third = (shlex.split(line.partition("#")[0])[1:] for line in shown.splitlines())
    assert (first[0], second[0], third[0]) == ("run", "status", "ingest")  # the last has a test of its own
    on(monkeypatch, tmp_path / "here")
    assert mmgrpo(*first, *QUICK) == 0
    said = capsys.readouterr().out
    assert f"Report: {address}/report.html" in said
    assert (adapter := re.search(rf"^Adapter: ({address}/\S+) \(its copy here: (\S+)\)$", said, re.MULTILINE))
    assert (Path(adapter[2]) / "adapter_config.json").is_file()
    assert mmgrpo("lineage", address, "--adapter", adapter[1]) == 0
    capsys.readouterr()
    on(monkeypatch, tmp_path / "elsewhere")
    assert mmgrpo(*second) == 0
    assert "1 iteration(s)" in capsys.readouterr().out
    assert not list((tmp_path / "elsewhere").rglob("*.parquet"))  # what nobody asked for stays there
    assert mmgrpo("next", TINY, "--run-dir", address, *QUICK) == 10
    assert f"Everything in {address} is up to date" in capsys.readouterr().out
    assert mmgrpo("verify", address) == 0
    assert f"{address}: " in capsys.readouterr().out
    for command in ("costs", "lineage", "report"):
        assert mmgrpo(command, address) == 0
    assert mmgrpo("diff", address, address) == 0
    assert mmgrpo("release", address, "--policy", "newest", "--force", "--reason", "for the test") == 0
    on(monkeypatch, tmp_path / "third")
    assert mmgrpo("export", "adapter", address, tmp_path / "adapter") == 0
    assert mmgrpo("export", "groups", address, tmp_path / "groups.parquet") == 0
    assert mmgrpo("verify", address, "--deep") == 0
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"s3cr3t-k3y" not in kept


@pytest.mark.slow
def test_two_processes_on_one_run_and_one_that_is_killed(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on(monkeypatch, tmp_path / "elsewhere")
    assert mmgrpo("plan", TINY, "--run-dir", address, *QUICK) == 0  # whatever is imported is here
    lease = 20.0
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MMGRPO_CACHE": str(tmp_path / "here"), VARIABLE: str(lease)}
    command = [sys.executable, "-m", "pipeline.cli", "run", str(TINY), "--run-dir", address, *QUICK]
    with subprocess.Popen([*command, "--exec", "concurrency=1"], env=environment, cwd=tmp_path) as writer:
        while not any("/scores/" in name for name in fsspec.filesystem("s3", use_listings_cache=False).find(address)):
            assert writer.poll() is None
            time.sleep(0.05)
        writer.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        assert mmgrpo("run", TINY, "--run-dir", address, *QUICK) == 75
        assert f"pid {writer.pid} on " in capsys.readouterr().err
        writer.send_signal(signal.SIGKILL)
    time.sleep(max(0.0, stopped + lease + 1 - time.monotonic()))
    taken: list[str] = []
    take_up = Artifacts.take_up
    monkeypatch.setattr(Artifacts, "take_up", lambda *given: taken.extend(names := take_up(*given)) or names)
    assert mmgrpo("run", TINY, "--run-dir", address, *QUICK) == 0
    assert mmgrpo("verify", address) == 0
    assert any(name.startswith("scores/") for name in taken)  # what the killed process had committed


@pytest.mark.parametrize("secret", ["s3://ada:pa55-W0RD@b/runs", "s3://b/runs?X-Amz-Signature=pa55-W0RD"])
def test_an_address_with_a_secret_in_it_is_refused_and_not_repeated(
    secret: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        mmgrpo("verify", secret)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert "put credentials into the environment" in said.err
    assert "pa55" not in said.out + said.err


@pytest.mark.parametrize("nearly", ["s3:/b/runs", "S3://b/runs", "https://b/runs"])
def test_what_is_nearly_an_address_makes_no_folder_of_that_name(
    nearly: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Path("data/tiny/recipe.toml").absolute()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        mmgrpo("run", str(recipe), "--run-dir", nearly)
    assert ended.value.code == 2
    assert "like s3://bucket/" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [("study", "s.toml", "--study-dir"), ("reproduce", "runs/a")])
def test_an_address_where_a_path_of_this_machine_is_meant_is_refused(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert mmgrpo(*command, "s3://b/runs") == 2
    assert "a path of this machine there, and no address" in capsys.readouterr().err


def test_a_bucket_that_is_not_there_is_told(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on(monkeypatch, tmp_path)
    assert mmgrpo("status", "s3://no-such-bucket/runs/a") == 4
    said = capsys.readouterr().err
    assert "s3://no-such-bucket/runs/a cannot be listed" in said
    assert "make the bucket: aws s3 mb s3://no-such-bucket" in said
    assert "committed" not in said  # nothing was
    assert mmgrpo("status", f"{address}-other") == 3
    assert f"{address}-other/run.json: no such file" in capsys.readouterr().err


def test_without_credentials_it_is_told_which_to_set(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on(monkeypatch, tmp_path)
    fsspec.filesystem("s3").clear_instance_cache()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert mmgrpo("status", address) == 4
    assert "(set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE)" in capsys.readouterr().err


@pytest.mark.parametrize("field", ["traces.snapshot", "examples.path"])
def test_a_snapshot_that_is_not_there_is_told_by_its_address(
    field: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on(monkeypatch, tmp_path)
    assert mmgrpo("plan", TINY, "--set", f"{field}={address}") == 2
    said = capsys.readouterr().err
    assert f"{field}: no snapshot at {address}." in said
    assert "Errno" not in said


def test_a_snapshot_at_an_address_is_added_to_and_named_in_recipes(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, every = own_recipe(tmp_path / "task"), traces(12)
    snapshots = f"{address.removesuffix('/runs/tiny')}/snapshots"

    def ingested(number: int, spans: list[list[dict[str, Any]]], *options: str) -> str:
        export([span for each in spans for span in each], tmp_path / f"{number}.json")
        given = ("--snapshots", snapshots, "--exec", "progress=off", *options)
        assert mmgrpo("ingest", recipe, tmp_path / f"{number}.json", *given) == 0
        return capsys.readouterr().out.split("Snapshot: ")[1].split()[0].rstrip(",")

    on(monkeypatch, tmp_path / "here")
    parent = ingested(0, every[:8])
    assert parent.startswith(f"{snapshots}/ingest/")
    on(monkeypatch, tmp_path / "elsewhere")
    assert ingested(0, every[:8]) == parent  # found, not made again
    child = ingested(1, every[6:], "--onto", parent)
    assert mmgrpo("snapshot", "diff", parent, child) == 0
    assert "traces: 4 came, 0 went, 0 changed, 8 as before" in capsys.readouterr().out
    on(monkeypatch, tmp_path / "third")
    assert mmgrpo("verify", child) == 0
    named = ("--set", f"examples.path={child}", "--set", "examples.inputs=['word']", "--run-dir", address)
    assert mmgrpo("stage", "examples", recipe, *named, "--exec", "progress=off") == 3
    assert f"{child}/examples.parquet: examples.dev names split 'dev'" in capsys.readouterr().err
    dev = ("--set", "ingest.dev=0.3")
    whole = ingested(2, every, *dev)
    named = ("--set", f"traces.snapshot={whole}", "--set", f"examples.path={whole}")
    taken = (*named, *dev, "--set", "group.unknown_policy=exclude", "--run-dir", address)
    assert mmgrpo("plan", recipe, *taken) == 0
    assert "will run        setup · ingest" in capsys.readouterr().out
    on(monkeypatch, tmp_path / "here")
    assert mmgrpo("verify", whole) == 0
    on(monkeypatch, tmp_path / "elsewhere")
    assert mmgrpo("forget", "--trace", f"{3:032x}", "--snapshots", snapshots, "--runs") == 0
    on(monkeypatch, tmp_path / "here")
    capsys.readouterr()
    assert mmgrpo("verify", whole) == 0
    assert "deleted by request" in capsys.readouterr().out
    assert not list((tmp_path / "here").rglob(f"{whole[-16:]}/*.parquet"))
    for old in (parent, child, whole):
        assert not list((tmp_path / "elsewhere").rglob(f"{old[-16:]}/*.parquet"))
        there = fsspec.filesystem("s3").find(old)
        assert sorted(name.rsplit("/", 1)[-1] for name in there) == ["manifest.json", "tombstone.json"]
