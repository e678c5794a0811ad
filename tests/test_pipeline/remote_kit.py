"""Addresses to test with: a real S3 server on this machine, and file systems of fsspec that need none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.jobs import key_of
from pipeline.partial import PartialArtifact
from pipeline.progress import Reporter
from pipeline.remote import attached
from pipeline.store import Store
from stages.contract import Artifact

PROGRAM = {"identity": {"factory": "mine:program"}}
PAYLOAD = {"stage": "program", "stage_version": 1, "recipe": {"a": 1}, "params": PROGRAM, "inputs": {}}
KEY = key_of(PAYLOAD)
FILES = ("parts/a.json", "parts/b.json", "program.json")
QUIET = Reporter("off")
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s3cr3t-k3y", "AWS_DEFAULT_REGION": "us-east-1"}

# moto's server looks and then writes, in threads; S3 does both in one step, and so does this one. `/fail/N` makes the
# next N requests fail with a 503, `/ignore/1` has it forget conditions, `/count` tells how many requests of each
# method there were.
SERVER = """
import json, sys, threading
from collections import Counter
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

app, lock, counts, asked = DomainDispatcherApplication(create_backend_app), threading.Lock(), Counter(), {"fail": 0}

def answer(environ, start):
    path = environ["PATH_INFO"]
    with lock:
        if path.startswith(("/fail/", "/ignore/")):
            asked[path.split("/")[1]] = int(path.split("/")[2])
        if path.startswith(("/fail/", "/ignore/", "/count")):
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(counts).encode()]
        counts[environ["REQUEST_METHOD"]] += 1
        if asked["fail"] > 0:
            asked["fail"] -= 1
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("503 Service Unavailable", [("Content-Length", "0")])
            return [b""]
        if asked.get("ignore"):
            environ.pop("HTTP_IF_NONE_MATCH", None)
            environ.pop("HTTP_IF_MATCH", None)
        return list(app(environ, start))

server = make_server("127.0.0.1", 0, answer, threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


class S3Server:
    """moto's server in a process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def ask(self, path: str) -> dict[str, int]:
        """Have it fail, or tell its counts."""
        with urllib.request.urlopen(f"{self.url}{path}") as answer:
            counts: dict[str, int] = json.load(answer)
        return counts

    def bucket(self, name: str) -> str:
        """The address of a fresh bucket."""
        import s3fs

        s3fs.S3FileSystem(endpoint_url=self.url, key="a", secret="b", skip_instance_cache=True).mkdir(name)
        return f"s3://{name}"

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def use(monkeypatch: pytest.MonkeyPatch, server: S3Server) -> None:
    """Credentials and the server's address, in the environment, where they belong."""
    import fsspec

    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    fsspec.filesystem("s3").clear_instance_cache()


class Machine:
    """A machine: its cache folder, and so its mirrors. `on` is a process of it."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache

    @contextmanager
    def on(self, address: str) -> Iterator[Path]:
        """The mirror of an address, up to date, as in a command on this machine."""
        before = os.environ.get("MMGRPO_CACHE")
        os.environ["MMGRPO_CACHE"] = str(self.cache)
        kept = dict(attached._MIRRORS), list(attached._FOLDERS)
        attached.detach()
        try:
            folder = attached.attach(address)
            attached.refresh()
            yield folder
        finally:
            attached.detach()
            attached._MIRRORS.update(kept[0])
            attached._FOLDERS.extend(kept[1])
            if before is None:
                del os.environ["MMGRPO_CACHE"]
            else:
                os.environ["MMGRPO_CACHE"] = before


def fill(out: PartialArtifact, mark: str, names: tuple[str, ...] = FILES) -> None:
    """Commit some files, whose bytes are those of whoever writes."""
    for name in names:
        if name not in out.committed():
            draft = out.scratch / "draft"
            draft.write_text(f"{name} of {mark}")
            out.commit_shard(name, draft)


def finish(out: PartialArtifact, mark: str) -> Artifact:
    """Finish it."""
    fill(out, mark, FILES[-1:])
    given = {"payload": PAYLOAD, "metrics": {"mark": mark}, "provenance": {}}
    return out.finish(stage="program", version=1, key=KEY, **given)


def make(folder: Path, mark: str) -> Artifact:
    """Make the artifact below a mirror."""
    with Store(folder / "artifacts").begin("program", KEY, QUIET) as out:
        fill(out, mark)
        return finish(out, mark)


def found(folder: Path) -> Artifact | None:
    """The artifact, as it is seen there."""
    return Store(folder / "artifacts").find("program", KEY)
