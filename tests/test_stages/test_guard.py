"""A guard ends what would outlive a killed process, and nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from stages.engines.guard import Guard

GUARDED = """
import subprocess, sys, time
from stages.engines.guard import Guard
kept = subprocess.Popen(["sleep", "600"])
guard = Guard([kept.pid])
print(kept.pid, flush=True)
time.sleep(600)
"""


def test_what_is_guarded_ends_when_its_owner_is_killed():
    owner = subprocess.Popen([sys.executable, "-c", GUARDED], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    kept = int(owner.stdout.readline())
    assert _lives(kept)
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    until = time.monotonic() + 60
    while _lives(kept):
        assert time.monotonic() < until, "the guarded process still lives"
        time.sleep(0.05)


def test_a_dismissed_guard_ends_nothing():
    kept = subprocess.Popen(["sleep", "600"])
    guard = Guard([kept.pid])
    guard.dismiss()
    assert guard._watch.poll() == 0
    assert kept.poll() is None
    kept.kill()
    kept.wait()


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
