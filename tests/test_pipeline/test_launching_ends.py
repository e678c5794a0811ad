"""What a command says of processes that it started and that failed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from pipeline.launching.failures import FAILURES, failure, note
from schemas.errors import ContractError, DataError, MmgrpoError, RecipeError, StageError, Violation


def ended(folder: Path, *exits: int) -> None:
    found = [{"rank": rank, "local_rank": rank, "exit": code} for rank, code in enumerate(exits) if code]
    (folder / FAILURES).write_text(json.dumps(found))


def test_a_killed_process_is_named_before_those_that_lost_it(tmp_path: Path) -> None:
    ended(tmp_path, -signal.SIGTERM, -signal.SIGSEGV, 1)
    log = tmp_path / "logs" / "x" / "attempt_0" / "1" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number}\n" for number in range(30)))
    note(tmp_path, "0", ConnectionError("closed by peer"))
    error = failure(tmp_path, tmp_path / "logs", "", 3, "")
    assert isinstance(error, StageError)
    assert "process 1 of the 3 that train was ended by SIGSEGV" in str(error)
    assert "same command goes on" in str(error)
    assert "| line 29" in str(error)
    assert "line 17\n" not in str(error)


def test_running_out_of_memory_is_named_and_what_torchrun_ended_is_not_blamed(tmp_path: Path) -> None:
    ended(tmp_path, -signal.SIGTERM, -signal.SIGKILL)
    error = failure(tmp_path, tmp_path / "logs", "", 2, "")
    assert "process 1 of the 2 that train was ended by SIGKILL, as the kernel does when memory runs out" in str(error)
    ended(tmp_path, -signal.SIGTERM, 1)
    assert "process 1 of the 2 that train failed with exit code 1" in str(
        failure(tmp_path, tmp_path / "logs", "", 2, "")
    )


@pytest.mark.parametrize(
    "raised",
    [
        RecipeError("a recipe"),
        DataError("some data"),
        StageError("ESS 0.1 is below train.ess_floor"),
        ContractError("groups", "g.parquet", [Violation("unique", 2, ("a",))], "hint"),
    ],
)
def test_an_error_of_a_process_is_that_of_the_command(tmp_path: Path, raised: MmgrpoError) -> None:
    ended(tmp_path, 1, 1)
    note(tmp_path, "0", raised)
    error = failure(tmp_path, tmp_path / "logs", "", 2, "")
    assert isinstance(error, MmgrpoError)
    assert (str(error), error.exit_code) == (str(raised), raised.exit_code)


def test_a_full_disk_is_a_full_disk_for_the_command_too(tmp_path: Path) -> None:
    ended(tmp_path, 1)
    note(tmp_path, "0", OSError(28, "No space left on device", "/run/a"))
    error = failure(tmp_path, tmp_path / "logs", "", 2, "")
    assert isinstance(error, OSError)
    assert (error.errno, error.filename) == (28, "/run/a")


def test_nodes_that_did_not_meet_are_told_from_what_torchrun_said(tmp_path: Path) -> None:
    error = failure(
        tmp_path, tmp_path / "logs", "noise\nDistNetworkError: timed out after 600 s\n", 4, " (node 1 of 2)"
    )
    assert "the 4 processes that train (node 1 of 2) did not come together" in str(error)
    assert "timed out after 600 s" in str(error)
