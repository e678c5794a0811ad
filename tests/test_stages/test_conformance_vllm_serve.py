"""The server engine over a real `vllm serve`, as `mmgrpo serve` starts it. Run by `make test-vllm`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.recipes import LoadedRecipe
from pipeline.serving import serving
from schemas.execution import Execution, ServerSection
from stages.engines.models import BaseModel
from stages.engines.server_engine import ServerEngine
from tests.test_stages.conformance import EngineConformance, Subject, wide_tiny
from tests.test_stages.engines_kit import make_adapter, tiny
from tests.test_stages.programs_kit import recipe_of

pytestmark = pytest.mark.vllm
CONTEXT = 512


class Running:
    """A server in a process group of its own, which dies as a whole."""

    def __init__(self, base: BaseModel, folder: Path) -> None:
        recipe = recipe_of(model={"base": str(base.path), "dtype": "float32", "context": CONTEXT})
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        found = serving(LoadedRecipe(recipe, folder), Execution(device="cpu"), folder, "127.0.0.1", self.port)
        self._argv, self._environment = found.argv, {**os.environ, **found.environment}
        self._log = (folder / "server.log").open("ab")
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._argv, env=self._environment, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def die(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def die_and_come_again(self) -> None:
        self.die()
        self.start()


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    folder = tmp_path_factory.mktemp("serve")
    base, other = (wide_tiny(tiny(folder, seed), folder / f"wide{seed}") for seed in (0, 1))
    server = Running(base, folder)
    try:
        yield Subject(
            engine=ServerEngine(base, CONTEXT, ServerSection(urls=(server.url,), patience_s=600)),
            base=base,
            context=CONTEXT,
            adapters=(make_adapter(base, folder / "a", 1), make_adapter(base, folder / "b", 2)),
            foreign=make_adapter(other, folder / "foreign", 3),
            mean=1e-5,
            worst=2e-4,
            die=server.die_and_come_again,
            survives=True,
        )
    finally:
        server.die()


class TestVllmServe(EngineConformance):
    def test_the_server_is_known_for_what_it_is(self, subject: Subject):
        assert subject.engine.name.startswith("server/vllm-")
        assert subject.engine.logprob_kind == "processed"
