"""Artifacts and run files at an address: what another machine sees, whoever is killed or comes second."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.locks import hold
from pipeline.manifests import check_files
from pipeline.metering import Meter
from pipeline.release.chain import append, held, read_chain
from pipeline.release.records import now
from pipeline.remote.artifacts import Artifacts
from pipeline.remote.attached import mirror_of
from pipeline.remote.lease import Lease
from pipeline.remote.storage import Storage, open_storage
from pipeline.runfile import RunFile, read_run, write_run
from pipeline.store import Store
from schemas.decisions import Opening
from schemas.errors import DataError, LockedError
from schemas.telemetry import read_attempts
from tests.test_e2e.kit import ROOT
from tests.test_pipeline.remote_kit import FILES, KEY, QUIET, Machine, S3Server, fill, finish, found, make


def test_another_machine_sees_an_artifact_once_its_manifest_is_there(
    address: str, here: Machine, elsewhere: Machine
) -> None:
    with here.on(address) as folder, Store(folder / "artifacts").begin("program", KEY, QUIET) as out:
        fill(out, "here")
        with elsewhere.on(address) as mirror:
            assert found(mirror) is None
            assert Store(mirror / "artifacts").all() == []
        finish(out, "here")
    with elsewhere.on(address) as mirror:
        artifact = found(mirror)
        assert artifact is not None
        assert not artifact.folder.exists()  # its bytes come once they are asked for
        assert artifact.file("parts/b.json").read_text() == "parts/b.json of here"
        assert check_files(artifact.path, artifact.manifest) == []
        assert Store(mirror / "artifacts").all() == [("program", artifact.folder)]


def test_a_process_that_was_killed_before_the_manifest_left_nothing_finished(
    address: str, here: Machine, elsewhere: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, here.on(address) as folder:
        patch.setattr(Storage, "create", _killed_at("manifest.json", Storage.create))
        with pytest.raises(KeyboardInterrupt):
            make(folder, "here")
    with elsewhere.on(address) as mirror:
        assert found(mirror) is None
    with here.on(address) as folder:
        assert found(folder) is None
        with Store(folder / "artifacts").begin("program", KEY, QUIET) as out:
            taken = out.taken_up()
            assert taken is not None
            assert taken.manifest.metrics == {"mark": "here"}
    with elsewhere.on(address) as mirror:
        assert Store(mirror / "artifacts").open("program", KEY).manifest.metrics == {"mark": "here"}


def test_a_process_that_was_killed_after_the_manifest_left_it_finished(
    address: str, here: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, here.on(address) as folder:
        patch.setattr(Artifacts, "publish", _killed_behind(Artifacts.publish))
        with pytest.raises(KeyboardInterrupt):
            make(folder, "here")
    with here.on(address) as folder:
        artifact = found(folder)
        assert artifact is not None
        assert check_files(artifact.path, artifact.manifest) == []
        assert make(folder, "again").manifest.metrics == {"mark": "here"}


def _killed_at(name: str, real: Callable[..., str | None]) -> Callable[..., str | None]:
    def create(self: Storage, key: str, data: bytes) -> str | None:
        if key.endswith(name):
            raise KeyboardInterrupt
        return real(self, key, data)

    return create


def _killed_behind(real: Callable[..., object]) -> Callable[..., None]:
    def publish(*arguments: object) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    return publish


def test_another_machine_goes_on_from_the_shards_and_keeps_the_time_they_took(
    address: str, here: Machine, elsewhere: Machine
) -> None:
    with here.on(address) as folder, Store(folder / "artifacts").begin("program", KEY, QUIET, Meter(lambda: 0)) as out:
        fill(out, "here", ("parts/a.json",))
    with elsewhere.on(address) as mirror:
        with Store(mirror / "artifacts").begin("program", KEY, QUIET, Meter(lambda: 0)) as out:
            assert {name for name in out.committed() if name.startswith("parts/")} == {"parts/a.json"}
            fill(out, "elsewhere")
            artifact = finish(out, "elsewhere")
        assert artifact.file("parts/a.json").read_text() == "parts/a.json of here"
        assert artifact.file("parts/b.json").read_text() == "parts/b.json of elsewhere"
        assert len(read_attempts(artifact.path)) == 2


def test_of_two_writers_of_one_artifact_the_second_takes_up_what_the_first_made(
    address: str, here: Machine, elsewhere: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lease, "take", lambda lease: None)  # as if one had slept through the end of its lease
    monkeypatch.setattr(Lease, "guard", lambda lease: None)
    monkeypatch.setattr(Lease, "enforced", lambda lease: True)
    monkeypatch.setattr(Lease, "release", lambda lease: None)
    with here.on(address) as folder, Store(folder / "artifacts").begin("program", KEY, QUIET) as out:
        with elsewhere.on(address) as mirror:
            make(mirror, "elsewhere")
        fill(out, "here")
        late = finish(out, "here")
        assert late.manifest.metrics == {"mark": "elsewhere"}
        assert check_files(late.path, late.manifest) == []
    with Machine(here.cache / "third").on(address) as mirror:
        artifact = found(mirror)
        assert artifact is not None
        assert artifact.manifest.metrics == {"mark": "elsewhere"}
        assert check_files(artifact.path, artifact.manifest) == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.integers(0, 2), min_size=6, max_size=40), killed=st.integers(0, 40))
def test_whatever_the_order_a_reader_sees_nothing_or_a_whole_artifact(
    tmp_path_factory: pytest.TempPathFactory, turns: list[int], killed: int
) -> None:
    """Three writers with other bytes each, none kept apart by a lease, one of which dies somewhere on its way."""
    there = tmp_path_factory.mktemp("law")
    storage, root = open_storage("memory", uuid.uuid4().hex), there / "reader"
    folder = root / "runs/a/artifacts/program" / KEY[:16]
    writers = [Paced(there / f"{mark}", storage, mark) for mark in "xyz"]
    for place, turn in enumerate([*turns, *(place % 3 for place in range(60))]):
        if turn == 0 and place >= killed:
            continue
        writers[turn].go_on()
        reader = Artifacts(root, storage, lambda path: None, lambda path: False)
        reader.look(folder)
        if (artifact := reader.find(folder)) is not None:
            assert check_files(artifact.path, artifact.manifest) == []
            winner = artifact.manifest.metrics["mark"]
            shutil.rmtree(folder)
    writers[0].kill()
    assert all(writer.mark in (None, winner) for writer in writers)
    assert [writer.mark for writer in writers[1:]] == [winner] * 2


def test_many_processes_that_publish_at_once_leave_one_whole_artifact(on_s3: str, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom tests.test_pipeline import remote_kit as kit\n"
        "from pipeline.remote.lease import Lease\n"
        "Lease.take = Lease.guard = Lease.release = lambda self: None\nLease.enforced = lambda self: True\n"
        "with kit.Machine(Path(sys.argv[1])).on(sys.argv[2]) as folder:\n"
        "  with kit.Store(folder / 'artifacts').begin('program', kit.KEY, kit.QUIET) as out:\n"
        "    kit.fill(out, sys.argv[3]); print('filled', flush=True); sys.stdin.readline()\n"
        "    print(kit.finish(out, sys.argv[3]).manifest.metrics['mark'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / mark), on_s3, mark],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for mark in ("x", "y")
    ]
    assert [writer.stdout.readline() for writer in writers if writer.stdout] == ["filled\n"] * 2
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    said = [writer.communicate(timeout=120)[0].strip() for writer in writers]
    assert len(set(said)) == 1
    with Machine(tmp_path / "reader").on(on_s3) as mirror:
        artifact = found(mirror)
        assert artifact is not None
        assert artifact.manifest.metrics == {"mark": said[0]}
        assert check_files(artifact.path, artifact.manifest) == []


class Paced:
    """A writer that does one thing at the storage each time it is told to go on."""

    def __init__(self, root: Path, storage: Storage, mark: str) -> None:
        self.mark: str | None = None
        self._dead = False
        self._turn, self._waiting, self._one = threading.Semaphore(0), threading.Semaphore(0), threading.Lock()
        self._thread = threading.Thread(target=self._work, args=(root, storage, mark), daemon=True)
        self._thread.start()
        self._waiting.acquire()

    def go_on(self) -> None:
        """Let it do one thing, and wait until it is at the next, or done."""
        if self._thread.is_alive():
            self._turn.release()
            self._waiting.acquire()

    def kill(self) -> None:
        """It does nothing more; its threads end."""
        self._dead = True
        self._turn.release(100)
        self._thread.join()

    def _work(self, root: Path, storage: Storage, mark: str) -> None:
        paced = copy.copy(storage)
        for name in ("list", "read", "create", "upload", "delete"):
            setattr(paced, name, self._paced(getattr(storage, name)))
        artifacts = Artifacts(root, paced, lambda path: None, lambda path: False)
        made = make(root / "own", mark)
        with suppress(SystemExit):
            first = artifacts.publish(made.path, root / "runs/a/artifacts/program" / KEY[:16], made.manifest)
            self.mark = (first or made).manifest.metrics["mark"]
        self._waiting.release()

    def _paced(self, do: Callable[..., Any]) -> Callable[..., Any]:
        def done(*arguments: Any) -> Any:
            with self._one:
                self._waiting.release()
                self._turn.acquire()
                if self._dead:
                    raise SystemExit
                return do(*arguments)

        return done


def test_a_run_file_that_another_process_wrote_meanwhile_is_not_overwritten(
    address: str, here: Machine, elsewhere: Machine
) -> None:
    with here.on(address) as folder:
        write_run(folder, RunFile(name="a", recipe={}))
        with elsewhere.on(address) as mirror:
            write_run(mirror, RunFile(name="a", recipe={"by": "elsewhere"}))
        with pytest.raises(LockedError, match=r"runs/a/run\.json: another process wrote it"):
            write_run(folder, RunFile(name="a", recipe={"by": "here"}))
    with here.on(address) as folder:
        assert read_run(folder).recipe == {"by": "elsewhere"}


def test_runs_that_share_a_ledger_see_all_its_lines_and_lose_none(
    address: str, here: Machine, elsewhere: Machine
) -> None:
    def note(folder: Path, score: str) -> None:
        ledger = folder / "../looks.jsonl"
        with hold(folder / ".lock", "the run"), held(ledger):
            append(ledger, read_chain(ledger, Opening), Opening(at=now(), split="test", scores=(score,)))

    other = f"{address.removesuffix('/a')}/b"
    with here.on(address) as folder:
        note(folder, "1")
    with elsewhere.on(other) as folder:
        note(folder, "2")
    with here.on(address) as folder:
        note(folder, "3")
    with elsewhere.on(other) as folder:
        assert [line.scores for line in read_chain(folder / "../looks.jsonl", Opening)] == [("1",), ("2",), ("3",)]


def test_a_ledger_that_was_written_meanwhile_is_not_overwritten(
    address: str, here: Machine, elsewhere: Machine
) -> None:
    line = Opening(at=now(), split="test", scores=("1",))
    with here.on(address) as folder:
        before = read_chain(folder / "looks.jsonl", Opening)
        with elsewhere.on(address) as mirror:
            append(mirror / "looks.jsonl", [], line.model_copy(update={"scores": ("2",)}))
        with pytest.raises(LockedError, match=r"looks\.jsonl: another process wrote it"):
            append(folder / "looks.jsonl", before, line)


def test_a_file_that_is_gone_there_or_was_only_written_here_is_gone_here(
    address: str, here: Machine, elsewhere: Machine
) -> None:
    with here.on(address) as folder:
        write_run(folder, RunFile(name="a", recipe={}))
        (folder / "decisions").mkdir()
        (folder / "decisions" / "0001.json").write_text("written, and killed before it was there too")
    with here.on(address) as folder:
        assert not (folder / "decisions" / "0001.json").exists()
        mirror = mirror_of(folder)
        assert mirror is not None
        mirror.storage.delete([mirror.key(folder / "run.json")])
    with here.on(address) as folder:
        assert not (folder / "run.json").exists()


def test_an_object_whose_bytes_changed_is_refused_and_nothing_of_it_is_kept(
    address: str, here: Machine, elsewhere: Machine
) -> None:
    with here.on(address) as folder:
        entry = make(folder, "here").manifest.files["parts/a.json"]
        mirror = mirror_of(folder)
        assert mirror is not None
        key = f"{mirror.key(folder)}/artifacts/program/{KEY[:16]}/{entry.sha256[:16]}/parts/a.json"
        mirror.storage.put(key, b"parts/a.json of here?")
    with elsewhere.on(address) as there:
        artifact = found(there)
        assert artifact is not None
        with pytest.raises(DataError, match=r"parts/a\.json: its bytes are not those that the manifest lists"):
            artifact.file("parts/b.json")
        assert not artifact.folder.exists()


def test_a_run_folder_that_was_copied_there_as_it_is_can_be_read(tmp_path: Path, elsewhere: Machine) -> None:
    make(tmp_path / "run", "copied")
    with elsewhere.on(f"file://{tmp_path}/run") as mirror:
        artifact = found(mirror)
        assert artifact is not None
        assert check_files(artifact.path, artifact.manifest) == []


def test_an_artifact_costs_a_request_a_file_and_a_few_more(on_s3: str, server: S3Server, here: Machine) -> None:
    with here.on(on_s3) as folder, hold(folder / ".lock", "the run"):
        before = sum(server.ask("/count").values())
        make(folder, "here")
        spent = sum(server.ask("/count").values()) - before
    assert spent == len(FILES) + 1  # files and manifest; a run that is held is known
