"""A Slurm of one node or two, started for a test from Debian's packages (`apt-get install slurm-wlm munge`)."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")


def missing() -> list[str]:
    """Tools that are not there; daemons need root."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    found = [tool for tool in TOOLS if shutil.which(tool, path=path) is None]
    return found + ([] if os.geteuid() == 0 else ["root"])


@contextmanager
def slurm(folder: Path, nodes: tuple[str, ...] = ()) -> Iterator[dict[str, str]]:
    """Daemons on ports of their own; gives the environment in which `sbatch` finds them.

    `nodes` are machines that this one plays beside itself: each a daemon here with a host name of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    munge = folder / "munge"
    munge.mkdir(mode=0o755)
    mine = [
        f"--key-file={key}",
        f"--socket={munge / 'sock'}",
        f"--log-file={munge / 'log'}",
        f"--pid-file={munge / 'pid'}",
    ]
    seed = f"--seed-file={munge / 'seed'}"
    daemons = [subprocess.Popen(["munged", "--foreground", "--force", *mine, seed])]
    names = (socket.gethostname().partition(".")[0], *nodes)
    config = _config(folder, munge / "sock", names)
    environment = {**os.environ, "SLURM_CONF": str(config), "PATH": os.environ["PATH"] + ":/usr/sbin"}
    try:
        _until((munge / "sock").exists, "munged")
        commands = (
            {"slurmctld": ["slurmctld", "-D"]} | {names[0]: ["slurmd", "-D"]} | {name: _node(name) for name in nodes}
        )
        for name, command in commands.items():
            log = (folder / f"{name}.out").open("w")
            daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        idle = ["sinfo", "--noheader", "--Node", "--format=%T"]
        _until(lambda: _output(idle, environment).split() == ["idle"] * len(names), "the node")
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()


def _node(name: str) -> list[str]:
    return ["unshare", "--uts", "sh", "-c", f"hostname {name} && exec slurmd -D"]


def finished(environment: dict[str, str], jobs: list[str], seconds: float) -> dict[str, str]:
    """The state of each job once all have ended."""
    deadline = time.monotonic() + seconds
    while True:
        states = {job: _state(environment, job) for job in jobs}
        if all(state in ENDED for state in states.values()):
            return states
        assert time.monotonic() < deadline, states
        time.sleep(1)


def _state(environment: dict[str, str], job: str) -> str:
    told = _output(["scontrol", "show", "job", job], environment)
    return next((part.partition("=")[2] for part in told.split() if part.startswith("JobState=")), "UNKNOWN")


def _output(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


def _until(ready: object, what: str) -> None:
    assert callable(ready)
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline, f"{what} did not start"
        time.sleep(0.3)


def _config(folder: Path, munge: Path, names: tuple[str, ...]) -> Path:
    host = names[0]
    ports = [_port() for _ in range(1 + len(names))]
    own = [f"NodeName={name} NodeAddr=127.0.0.{place}" for place, name in enumerate(names, start=1)]
    (folder / "state").mkdir()
    for name in names:
        (folder / f"spool-{name}").mkdir()
    lines = [
        "ClusterName=test",
        f"SlurmctldHost={host}(127.0.0.1)",
        "SlurmUser=root",
        f"SlurmctldPort={ports[0]}",
        f"AuthInfo=socket={munge}",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SwitchType=switch/none",
        "JobAcctGatherType=jobacct_gather/none",
        "SelectType=select/cons_tres",
        "ReturnToService=2",
        "SchedulerParameters=requeue_delay=1",
        f"StateSaveLocation={folder / 'state'}",
        f"SlurmdSpoolDir={folder / 'spool'}-%n",
        "SlurmdParameters=config_overrides",
        f"SlurmctldPidFile={folder / 'slurmctld.pid'}",
        f"SlurmdPidFile={folder / 'slurmd'}-%n.pid",
        *(f"{one} Port={port} CPUs={os.cpu_count()} RealMemory=4000" for one, port in zip(own, ports[1:], strict=True)),
        f"PartitionName=all Nodes={','.join(names)} Default=YES MaxTime=INFINITE State=UP",
    ]
    config = folder / "slurm.conf"
    config.write_text("\n".join(lines) + "\n")
    return config


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
