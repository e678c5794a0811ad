"""Storage that fails, or forgets what it promised: waited for, or told."""

from __future__ import annotations

import pytest

from pipeline.locks import hold
from pipeline.remote.failing import advice
from pipeline.store import Store
from schemas.errors import StageError
from tests.test_pipeline.remote_kit import KEY, QUIET, Machine, S3Server, fill, finish, found, make


def test_storage_that_answers_after_some_errors_is_waited_for(on_s3: str, server: S3Server, here: Machine) -> None:
    with here.on(on_s3) as folder:
        server.ask("/fail/2")
        make(folder, "here")
        assert found(folder) is not None


def test_storage_that_fails_is_told_and_leaves_nothing_half_made(
    on_s3: str, server: S3Server, here: Machine, elsewhere: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    try:
        with here.on(on_s3) as folder, Store(folder / "artifacts").begin("program", KEY, QUIET) as out:
            fill(out, "here")
            server.ask("/fail/1000")
            with pytest.raises(StageError, match=r"s3://b-.*/runs/a.* cannot be .*What was committed is kept") as error:
                finish(out, "here")
            server.ask("/fail/0")
        assert "s3cr3t" not in str(error.value)
    finally:
        server.ask("/fail/0")
    with elsewhere.on(on_s3) as mirror:
        assert found(mirror) is None
    with here.on(on_s3) as folder, Store(folder / "artifacts").begin("program", KEY, QUIET) as out:
        assert out.taken_up() is not None


@pytest.mark.parametrize(
    ("error", "extra", "told"),
    [
        (
            PermissionError("Access Denied"),
            "s3",
            "do not allow that at x://b, or have run out: give it others (set AWS_",
        ),
        (FileNotFoundError("The specified bucket does not exist."), "gs", "gcloud storage buckets create x://b"),
        (OSError("The specified container does not exist."), "az", "There is no x://b: correct the address; then"),
        (TimeoutError(), "s3", "See that the storage answers (AWS_ENDPOINT_URL says"),
        (OSError("?"), None, "See that the storage answers, then type the same again"),
    ],
)
def test_what_to_do_about_storage_depends_on_what_failed(error: Exception, extra: str | None, told: str) -> None:
    assert told in advice(error, "x://b", extra)


def test_a_store_that_forgets_conditions_is_told(
    on_s3: str, server: S3Server, here: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    with here.on(on_s3) as folder, hold(folder / ".lock", "the run"):
        pass
    assert capsys.readouterr().err == ""
    server.ask("/ignore/1")
    try:
        with here.on(on_s3) as folder, hold(folder / ".lock", "the run"):
            pass
    finally:
        server.ask("/ignore/0")
    assert "the lease alone keeps two writers apart" in capsys.readouterr().err
