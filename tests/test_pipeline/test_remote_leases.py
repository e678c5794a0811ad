"""Leases of runs at an address: one writer at a time, and who lost its lease writes nothing more."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pipeline.locks import hold
from pipeline.remote.lease import VARIABLE, Lease
from pipeline.runfile import RunFile, write_run
from pipeline.store import Store
from schemas.errors import LockedError
from tests.test_pipeline.remote_kit import KEY, QUIET, Machine, fill, finish, found, make


def test_one_process_at_a_time_holds_a_run(address: str, here: Machine, elsewhere: Machine) -> None:
    with here.on(address) as folder, hold(folder / ".lock", "the run"), elsewhere.on(address) as mirror:
        _refused(mirror)
    with elsewhere.on(address) as mirror, hold(mirror / ".lock", "the run"):  # released, it is free at once
        make(mirror, "elsewhere")
    with here.on(address) as folder:
        artifact = found(folder)
        assert artifact is not None
        assert artifact.manifest.metrics == {"mark": "elsewhere"}


def _refused(mirror: Path) -> None:
    with pytest.raises(LockedError, match=rf"the run is in use .*pid {os.getpid()}"), hold(mirror / ".lock", "the run"):
        pass


def test_a_lease_that_ran_out_is_taken_over_and_its_holder_stops_before_it_commits(
    address: str, here: Machine, elsewhere: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "0.4")
    monkeypatch.setattr(Lease, "_renew_on", lambda lease: None)  # it sleeps
    with here.on(address) as folder, hold(folder / ".lock", "the run"):
        with Store(folder / "artifacts").begin("program", KEY, QUIET) as out:
            fill(out, "here", ("parts/a.json",))
            time.sleep(0.5)
            with elsewhere.on(address) as mirror, hold(mirror / ".lock", "the run"):
                for late in (fill, finish):
                    with pytest.raises(LockedError, match="the lease was lost, pid"):
                        late(out, "here")
        with pytest.raises(LockedError, match="the lease was lost"):
            write_run(folder, RunFile(name="a", recipe={}))
    with elsewhere.on(address) as mirror:
        assert found(mirror) is None
        assert not (mirror / "run.json").exists()


def test_a_lease_that_is_renewed_does_not_run_out(
    on_s3: str, here: Machine, elsewhere: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "1.5")
    with here.on(on_s3) as folder, hold(folder / ".lock", "the run"):
        time.sleep(2.5)
        with elsewhere.on(on_s3) as mirror:
            _refused(mirror)
        make(folder, "here")
    with elsewhere.on(on_s3) as mirror:
        artifact = found(mirror)
        assert artifact is not None
        assert artifact.manifest.metrics == {"mark": "here"}
