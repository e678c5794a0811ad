"""The server engine as every engine: over a small server in this process, and over a real `vllm serve`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.test_stages.conformance import EngineConformance, Subject
from tests.test_stages.engines_kit import make_adapter, tiny
from tests.test_stages.server_kit import KitServer, engine_over


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    folder = tmp_path_factory.mktemp("server")
    base, other = tiny(folder), tiny(folder, 1)
    server = KitServer(base)
    engine = engine_over(server, context=1024)
    yield Subject(
        engine=engine,
        base=base,
        context=1024,
        adapters=(make_adapter(base, folder / "a", 1), make_adapter(base, folder / "b", 2)),
        foreign=make_adapter(other, folder / "foreign", 3),
        mean=1e-5,
        worst=1e-4,
        die=lambda: server.die_for(0.3),
        survives=True,
    )
    engine.close()
    server.close()


class TestServerEngine(EngineConformance):
    pass
