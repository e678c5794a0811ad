"""Starting the processes of a train stage on this node, waiting for them, and leaving none behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.launching.description import Description
from pipeline.launching.failures import failure
from pipeline.launching.place import own_folder
from pipeline.launching.settings import Launch
from schemas.errors import StageError

PATIENCE_S = 600
"""How long the nodes wait for each other."""
GRACE_S = 45.0
"""How long torchrun has to end its processes; it kills those that do not obey after 30 seconds."""
SOURCE = Path(__file__).resolve().parent.parent.parent


@contextmanager
def started(launch: Launch, description: Description, key: str) -> Iterator[Team]:
    """A node's processes, started now; at the end of the block none is left, whatever happened."""
    with own_folder() as (folder, lock):
        description.write(folder)
        team = Team(launch, folder, lock, key)
        try:
            yield team
        finally:
            team.stop()


class Team:
    """torchrun as a child, and below it the processes."""

    def __init__(self, launch: Launch, folder: Path, lock: int, key: str) -> None:
        self.launch, self.folder, self._lock, self._key = launch, folder, lock, key
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start torchrun in a session of its own: a signal is passed on once, by `stop`."""
        mine = [str(self.folder), str(os.getpid()), self.launch.config or "", str(self.launch.size)]
        with (self.folder / "agent.log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603
                [*_python("pipeline.launching.agent"), *mine, *self._arguments()],
                env=_environment(self.launch),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(self._lock,),  # held until torchrun has ended, also where this process is killed
            )

    @property
    def logs(self) -> Path:
        """Where torchrun puts the output of each process."""
        return self.folder / "logs"

    def _arguments(self) -> list[str]:
        launch, logs = self.launch, str(self.logs)
        words = ["--nproc_per_node", str(launch.processes), "--nnodes", str(launch.nodes), "--max_restarts", "0"]
        words += ["--log_dir", logs, "--redirects", "3", "--no_python"]
        if launch.rendezvous is None:
            words += ["--standalone", "--local_addr", "127.0.0.1"]
        else:
            words += ["--node_rank", str(launch.node_rank), "--rdzv_backend", "static", "--rdzv_id", self._key[:16]]
            words += ["--rdzv_endpoint", launch.rendezvous, "--rdzv_conf", f"timeout={PATIENCE_S}"]
        return [*words, *_python("pipeline.launching.rank"), str(self.folder)]

    def wait(self, until_s: float, meanwhile: Callable[[float], object]) -> bool:
        """Whether the processes ended; `meanwhile` is called, and takes the time, as long as they do not."""
        assert self._process is not None
        if self._process.poll() is None:
            meanwhile(until_s)
        return self._process.poll() is not None

    def check(self) -> None:
        """Raise what went wrong.

        Raises:
            MmgrpoError: that of a process, or a StageError that says how one ended.
            OSError: what the machine did not allow one of them.
        """
        assert self._process is not None
        if self._process.returncode:
            launch = self.launch
            node = f" (node {launch.node_rank} of {launch.nodes})" if launch.nodes > 1 else ""
            told = (self.folder / "agent.log").read_text(errors="replace")
            raise failure(self.folder, self.logs, told, launch.size, node)

    def lost(self) -> StageError:
        """For processes that ended well without a result."""
        return StageError(f"the {self.launch.size} processes that train ended without a result: type the same again")

    def stop(self) -> None:
        """Tell them to end, and wait until they have."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its processes see it gone, and end
            process.wait()


def _python(module: str) -> list[str]:
    # Without the working folder on the path: a file of the user's may have the name of a module.
    return [sys.executable, "-P", "-u", "-m", module]


def _environment(launch: Launch) -> dict[str, str]:
    """What this process has, without what would change torchrun's settings; our modules are found."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TORCHELASTIC_"))}
    paths = [str(SOURCE), *filter(None, [kept.get("PYTHONPATH")])]
    own = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(launch.threads)}
    quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE"}
    return quiet | kept | own | {"POLARS_MAX_THREADS": str(launch.threads)}
