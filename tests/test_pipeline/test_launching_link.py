"""Between a command and the processes that it started: what they write, what they say, and who ends with whom."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.launching.link import Link, LinkedOut
from pipeline.launching.place import own_folder
from pipeline.launching.said import Said
from tests.test_e2e.kit import ROOT


class Kept:
    """An `Out` that remembers what it was told."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.told = scratch, list[Any]()

    def commit_shard(self, name: str, file: Path) -> None:
        if not file.exists():
            raise OSError(28, "No space left on device", str(file))
        self.told.append(("commit", name, file.read_text()))

    def committed(self, prefix: str = "") -> dict[str, Path]:
        return {f"{prefix}a": self.scratch / "a"}

    def drop(self, prefix: str) -> None:
        self.told.append(("drop", prefix))

    def exclude(self, reason: str, count: int = 1) -> None:
        self.told.append(("exclude", reason, count))

    def progress(self, done: int, total: int, unit: str, **figures: float | str) -> None:
        self.told.append(("progress", done, total, unit, figures))

    def telemetry(self, **figures: float) -> None:
        self.told.append(("telemetry", figures))


def test_what_process_0_writes_arrives_whole_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "shard").write_text("of bytes")
    kept = Kept(tmp_path)

    def process_0() -> None:
        out = LinkedOut(tmp_path / "link", tmp_path)
        out.commit_shard("adapter/a.safetensors", tmp_path / "shard")
        assert out.committed("b") == {"ba": tmp_path / "a"}
        out.drop("plan")
        out.exclude("no_tokens", 3)
        out.progress(1, 2, "steps", loss=0.1, note="—")
        out.telemetry(seconds=1.5)
        out.done({"loss": 0.1 + 0.2, "reason": None})

    with Link(tmp_path / "link", kept) as link:
        other = threading.Thread(target=process_0)
        other.start()
        while other.is_alive():
            link.serve(0.05)
        link.serve(0)
    assert kept.told == [
        ("commit", "adapter/a.safetensors", "of bytes"),
        ("drop", "plan"),
        ("exclude", "no_tokens", 3),
        ("progress", 1, 2, "steps", {"loss": 0.1, "note": "—"}),
        ("telemetry", {"seconds": 1.5}),
    ]
    assert link.metrics == {"loss": 0.1 + 0.2, "reason": None}


def test_what_the_disk_refuses_the_command_ends_both_ends(tmp_path: Path) -> None:
    ended = []

    def process_0() -> None:
        try:
            LinkedOut(tmp_path / "link", tmp_path).commit_shard("a", tmp_path / "nowhere")
        except ConnectionError as error:
            ended.append(error)

    other = threading.Thread(target=process_0)
    with Link(tmp_path / "link", Kept(tmp_path)) as link:
        other.start()
        with pytest.raises(OSError, match="No space left"):
            link.serve(30)
    other.join(30)
    assert ended


def test_a_process_0_that_is_gone_is_no_reason_to_wait(tmp_path: Path) -> None:
    with Link(tmp_path / "link", Kept(tmp_path)) as link:
        with socket.socket(socket.AF_UNIX) as gone:
            gone.connect(str(tmp_path / "link"))
            gone.sendall(b'{"do": "dro')
        began = time.monotonic()
        link.serve(60)
        assert time.monotonic() - began < 30
        assert link.metrics is None


def test_a_started_process_ends_when_its_parent_was_killed(tmp_path: Path) -> None:
    child = "import os, time, pipeline.launching.watch as w; w.end_with(os.getppid()); print(os.getpid(), flush=True)"
    child += "; time.sleep(120)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout
    number = int(process.stdout.readline())
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{number}/stat").exists() and " Z " not in Path(f"/proc/{number}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_a_killed_command_left_goes_with_the_next_once_its_processes_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = """
import subprocess, sys, time, pipeline.launching.place as place
with place.own_folder() as (made, lock):
    heir = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], pass_fds=(lock,))
    print(made, heir.pid, flush=True)
    time.sleep(120)
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as below:
        monkeypatch.setattr("tempfile.tempdir", below)
        environment = os.environ | {"TMPDIR": below}
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, env=environment)
        assert process.stdout
        theirs, heir = process.stdout.readline().decode().split()
        process.kill()
        process.wait()
        with own_folder() as (mine, _):
            assert sorted(Path(below).iterdir()) == sorted([mine, Path(theirs)])
        os.kill(int(heir), signal.SIGKILL)
        process.stdout.read()  # until the heir has ended too
        with own_folder() as (mine, _):
            assert list(Path(below).iterdir()) == [mine]
        assert not list(Path(below).iterdir())


def test_what_process_0_says_is_said_as_it_comes_but_for_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = {stream: tmp_path / "x" / "attempt_0" / "0" / f"{stream}.log" for stream in ("stdout", "stderr")}
    logs["stdout"].parent.mkdir(parents=True)
    said = Said(tmp_path)
    said.tell()
    logs["stdout"].write_text("View the run at http://a/b\n3 calls are n")
    logs["stderr"].write_text("a warning\nTraceback (most recent call last):\n  File …\n")
    said.tell()
    assert capsys.readouterr() == ("View the run at http://a/b\n", "a warning\n")
    with logs["stdout"].open("a") as file:
        file.write("ot trained on")
    said.tell()
    assert capsys.readouterr() == ("", "")
    said.tell(last=True)
    assert capsys.readouterr() == ("3 calls are not trained on\n", "Traceback (most recent call last):\n  File …\n")
