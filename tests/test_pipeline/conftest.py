"""What many tests share: one Chromium a process, and storage with the machines that use it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_pipeline.chromium import Browser, open_browser
from tests.test_pipeline.remote_kit import Machine, S3Server, use


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium; the test carries the mark `browser`."""
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    started = S3Server()
    yield started
    started.close()


@pytest.fixture(params=["s3", "memory", "file"])
def address(request: pytest.FixtureRequest, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh folder of each kind of storage."""
    if request.param == "s3":
        use(monkeypatch, server)
        return f"{server.bucket(f'b-{uuid.uuid4().hex}')}/runs/a"
    there = f"{tmp_path}/there" if request.param == "file" else uuid.uuid4().hex
    return f"{request.param}://{there}/runs/a"


@pytest.fixture
def on_s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    use(monkeypatch, server)
    return f"{server.bucket(f'b-{uuid.uuid4().hex}')}/runs/a"


@pytest.fixture
def here(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "here")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "elsewhere")
