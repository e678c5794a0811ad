"""One Chromium for all tests of a process that need it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.test_pipeline.chromium import Browser, open_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium; the test carries the mark `browser`."""
    with open_browser() as opened:
        yield opened
