"""The Ray cluster that a command works with: one that is there, or one of its own that ends with it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.metering import Meter
from pipeline.on_ray.members import Note, Wanted
from pipeline.on_ray.session import folder_of_session
from pipeline.on_ray.wants import resources, room, wanted_of
from pipeline.on_ray.workers import RayWorkers, Several
from pipeline.pool import Pool, cores
from schemas.errors import StageError
from schemas.execution import Execution
from schemas.installing import install
from schemas.recipe import Recipe

REACH_S = 10.0
"""How long a cluster's port may take to answer at all; Ray itself asks on for minutes, without a word."""
STARTS = 3
"""Tries to start a cluster. Ray gives its processes half a minute, which a busy machine may not be able to do."""


@dataclass
class Cluster:
    """Connected to, or started, when the first work is to be shared."""

    execution: Execution
    recipe: Recipe | None
    note: Note
    own: bool = False
    """Whether it ends with this command."""
    connected: bool = False
    folder: Path = field(default_factory=Path.cwd)
    """Where the command was typed; a program may change the working folder later."""
    meter: Meter | None = None
    """Of the work of pools."""
    _ours: bool = False
    """Whether this command made the connection, and ends it."""
    _held: ExitStack = field(default_factory=ExitStack)
    _wanted: Wanted | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def pool(self, make: Callable[[], Any]) -> Iterator[Pool]:
        """See `pipeline.pool.Pools`."""
        with self.workers(self.meter) as workers:
            yield workers.pool(make)

    @contextmanager
    def workers(self, meter: Meter | None = None) -> Iterator[RayWorkers]:
        """The workers of one stage. Their processes end with it, so that training has the machines to itself."""
        workers, kindly = RayWorkers(self.wanted, self.execution.concurrency, self.tasks_at_once), False
        if meter is not None:
            before = meter.helpers.workers if isinstance(meter.helpers, Several) else []
            meter.helpers = Several([*before, workers])
        try:
            yield workers
            kindly = True
        finally:
            if self.connected:
                workers.close(kindly=kindly)

    def wanted(self) -> Wanted:
        """What an actor takes, of a cluster that is there from now on.

        Raises:
            StageError: where Ray is not installed, does not answer, or has another version; or where a cluster of our
                own has no room for one actor.
        """
        with self._lock:
            if self._wanted is None:
                self.connect()
                self._wanted = wanted_of(self.execution, self.recipe, self.note, self.folder, own=self.own)
            return self._wanted

    def tasks_at_once(self) -> int:
        """Two for each core of the cluster: none waits for its task, and few results wait for their turn."""
        return max(2, 2 * int(resources().get("CPU", 1)))

    def connect(self) -> None:
        """Connect to the cluster, or start one.

        Raises:
            StageError: where that cannot be.
        """
        if find_spec("ray") is None:
            raise StageError(f"executor = 'ray' needs Ray: {install('ray')}")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        if ray.is_initialized():  # by the Python program that called us: it is theirs to end
            self.connected = True
            return
        address = self.execution.ray.address or os.environ.get("RAY_ADDRESS") or None
        self._ours = True
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
        with _own_signals():
            try:
                if address is None:
                    self._start(quiet)
                else:
                    _reach(address)
                    ray.init(address=address, **quiet)
            except Exception as error:  # noqa: BLE001 - Ray raises bare ones too
                where = "on this machine" if address is None else f"at {address}"
                text = " ".join(str(error).split())
                if isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
                    text += _token()
                self.close()
                raise StageError(
                    f"Ray {where} cannot be used: {text}. `mmgrpo doctor --exec executor=ray` looks into it; "
                    "`ray start --head` starts a cluster, --exec executor=local does without"
                ) from None
        self.connected = True

    def _start(self, quiet: dict[str, Any]) -> None:
        import ray

        self.own = True
        for left in reversed(range(STARTS)):
            folder = self._held.enter_context(folder_of_session())
            try:
                ray.init(
                    address="local",
                    num_cpus=cores(),
                    include_dashboard=False,
                    object_store_memory=self.execution.ray.object_store_mib << 20,
                    _temp_dir=str(folder),
                    **quiet,
                )
            except Exception as error:
                ray.shutdown()
                if not left or "timed out" not in str(error):
                    raise
                self.note("Ray: its processes did not start in time on a busy machine; once more")
            else:
                return

    def close(self) -> None:
        """Leave the cluster; one of our own ends."""
        if self._ours and "ray" in sys.modules:
            sys.modules["ray"].shutdown()
        self.connected = self.own = self._ours = False
        self._held.close()


def _token() -> str:
    """What to try where a cluster answers and lets nobody in: Ray shows no token unless it is told to."""
    told = os.environ.get("RAY_AUTH_MODE") is not None
    return "" if told else " (where the cluster asks for a token, set RAY_AUTH_MODE=token)"


def _reach(address: str) -> None:
    """Raises OSError when nothing answers at `host:port`; other forms of address are Ray's to resolve."""
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdigit():
        socket.create_connection((host, int(port)), REACH_S).close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep our own handlers: Ray's would end the process where ours lets a command end in order."""
    here = threading.current_thread() is threading.main_thread()
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)} if here else {}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextmanager
def cluster_of(execution: Execution, recipe: Recipe, note: Note) -> Iterator[Cluster | None]:
    """The cluster of a command, until its end; None where the execution settings ask for none."""
    if execution.executor != "ray":
        yield None
        return
    cluster = Cluster(execution, recipe, note)
    try:
        yield cluster
    finally:
        cluster.close()


@contextmanager
def connected(execution: Execution) -> Iterator[str]:
    """What a cluster has, in words, while connected to it.

    Raises:
        StageError: where it does not answer, or has another version of Python or Ray.
    """
    cluster = Cluster(execution, None, print)
    try:
        cluster.connect()
        yield room(resources())
    finally:
        cluster.close()
