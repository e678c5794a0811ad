from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.jobs import key_of
from pipeline.journal import Journal
from pipeline.manifests import MANIFEST, check_files, read_manifest
from pipeline.metering import Meter
from pipeline.partial import JOURNAL, PartialArtifact
from pipeline.progress import Reporter
from pipeline.store import Store
from schemas.errors import DataError, LockedError
from schemas.parquet import write_table
from schemas.policies import POLICIES
from stages.contract import Artifact

PAYLOAD = {"stage": "demo", "stage_version": 1, "recipe": {"a": 1}, "params": {}, "inputs": {}}
KEY = key_of(PAYLOAD)
QUIET = Reporter("off")
ROW = {"policy": "p", "base": "b", "adapters": "{}", "parent": None, "iteration": 0}


def fill(out: PartialArtifact) -> None:
    for name in ("shards/a.json", "shards/b.json"):
        draft = out.scratch / "draft"
        draft.write_text(name)
        out.commit_shard(name, draft)
    write_table([ROW], out.scratch / "t.parquet", POLICIES)
    out.commit_shard("t.parquet", out.scratch / "t.parquet")
    out.telemetry(seconds=1.5)
    out.telemetry(seconds=0.5, tokens=3)
    out.exclude("too_long", 2)


def finish(out: PartialArtifact) -> Artifact:
    out.drop("shards/")
    return out.finish(stage="demo", version=1, key=KEY, payload=PAYLOAD, metrics={"m": 1}, provenance={})


def make(root: Path) -> Artifact:
    store = Store(root)
    with store.begin("demo", KEY, QUIET) as out:
        fill(out)
        return finish(out)


def test_an_artifact_exists_only_once_its_manifest_does(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.begin("demo", KEY, QUIET) as out:
        fill(out)
        assert store.find("demo", KEY) is None
        finish(out)
    artifact = store.open("demo", KEY)
    assert artifact.manifest.files["t.parquet"].rows == 1
    assert artifact.manifest.files["t.parquet"].table == "policies"
    assert artifact.manifest.excluded == {"too_long": 2}
    assert sorted(path.name for path in artifact.path.iterdir()) == [MANIFEST, "t.parquet", "telemetry"]
    assert check_files(artifact.path, artifact.manifest) == []


def test_telemetry_adds_up_and_is_no_part_of_the_digest(tmp_path: Path) -> None:
    artifact = make(tmp_path / "a")
    assert json.loads(artifact.file("telemetry/telemetry.json").read_text()) == {"seconds": 2.0, "tokens": 3.0}
    with Store(tmp_path / "b").begin("demo", KEY, QUIET) as out:
        fill(out)
        out.telemetry(seconds=9)
        assert finish(out).digest == artifact.digest


def test_a_shard_survives_a_process_that_died(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.begin("demo", KEY, QUIET) as out:
        (out.scratch / "x").write_text("1")
        out.commit_shard("shards/x", out.scratch / "x")
        (out.scratch / "half").write_text("lost")
    with store.begin("demo", KEY, QUIET) as out:
        assert list(out.committed("shards/")) == ["shards/x"]


@pytest.mark.parametrize("step", ["unlink", "rmtree", "rename"])
def test_a_kill_between_manifest_and_rename_is_taken_up(tmp_path: Path, monkeypatch: Any, step: str) -> None:
    store = Store(tmp_path)

    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    with store.begin("demo", KEY, QUIET, Meter(lambda: 0)) as out:  # which notes what it took, last when it leaves
        fill(out)
        target = {"unlink": (Path, "unlink"), "rmtree": (__import__("shutil"), "rmtree"), "rename": (Path, "rmdir")}
        with monkeypatch.context() as patch:
            patch.setattr(*target[step], die)
            with pytest.raises(Killed):
                finish(out)
    assert store.find("demo", KEY) is None
    with store.begin("demo", KEY, QUIET) as out:
        artifact = out.taken_up()
    assert artifact is not None
    assert store.open("demo", KEY).digest == artifact.digest
    assert check_files(artifact.path, artifact.manifest) == []


def test_a_second_process_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    store = Store(tmp_path)
    code = (
        "import sys; from pathlib import Path; from pipeline.store import Store\n"
        "from pipeline.progress import Reporter\n"
        "from schemas.errors import LockedError\n"
        f"try:\n  with Store(Path({str(tmp_path)!r})).begin('demo', {KEY!r}, Reporter('off')): print('entered')\n"
        "except LockedError as error: print(error); sys.exit(error.exit_code)"
    )
    with store.begin("demo", KEY, QUIET):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 75, done.stderr
        assert f"pid {__import__('os').getpid()}" in done.stdout
        with pytest.raises(LockedError), store.begin("demo", KEY, QUIET):
            pass
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", ".scratch/x", "a//b", MANIFEST])
def test_a_shard_cannot_be_written_outside_its_artifact(tmp_path: Path, name: str) -> None:
    with Store(tmp_path).begin("demo", KEY, QUIET) as out:
        (out.scratch / "x").write_text("1")
        with pytest.raises(AssertionError):
            out.commit_shard(name, out.scratch / "x")


def test_every_flipped_byte_is_found_and_its_file_named(tmp_path: Path) -> None:
    artifact = make(tmp_path)
    for name in artifact.manifest.files:
        path = artifact.path / name
        whole = path.read_bytes()
        for position in range(0, len(whole), max(1, len(whole) // 7)):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
            assert [str(path) in problem for problem in check_files(artifact.path, artifact.manifest)] == [True]
        path.write_bytes(whole)
    assert check_files(artifact.path, artifact.manifest) == []


def test_every_flipped_byte_of_a_manifest_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path).path / MANIFEST
    whole = path.read_bytes()
    for position in range(len(whole) - 1):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(DataError, match=MANIFEST):
            read_manifest(path)


def test_a_stray_and_a_missing_file_are_named(tmp_path: Path) -> None:
    artifact = make(tmp_path)
    (artifact.path / "stray").write_text("")
    (artifact.path / "t.parquet").unlink()
    problems = check_files(artifact.path, artifact.manifest)
    assert any("stray: not listed" in problem for problem in problems)
    assert any("t.parquet: listed in the manifest but missing" in problem for problem in problems)


@pytest.mark.parametrize("name", ["stray.parquet", "notes.txt", "shards2/.swp", "telemetry/other.json"])
def test_a_stray_file_is_named_before_the_artifact_is_made(tmp_path: Path, name: str) -> None:
    with Store(tmp_path).begin("demo", KEY, QUIET) as out:
        fill(out)
    stray = out.scratch.parent / name
    stray.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"a": [1]}), stray)
    with Store(tmp_path).begin("demo", KEY, QUIET) as out:
        with pytest.raises(DataError, match=rf"{name}: a stray file .* no stage committed it"):
            finish(out)
        stray.unlink()
        assert finish(out).manifest.files["t.parquet"].rows == 1


def test_damaged_telemetry_is_named(tmp_path: Path) -> None:
    with Store(tmp_path).begin("demo", KEY, QUIET) as out:
        fill(out)
        (out.scratch.parent / "telemetry" / "telemetry.json").write_text("{")
        with pytest.raises(DataError, match=r"telemetry.json: expected a JSON object of numbers .* delete this"):
            out.telemetry(seconds=1.0)


def test_a_folder_that_lost_its_manifest_is_named_and_stands_in_the_way_of_nothing_silently(tmp_path: Path) -> None:
    folder = make(tmp_path).path
    (folder / MANIFEST).unlink()
    store = Store(tmp_path)
    assert store.find("demo", KEY) is None
    with pytest.raises(DataError, match=r"manifest\.json is missing") as caught, store.begin("demo", KEY, QUIET):
        pytest.fail("it was begun")
    assert str(folder) in str(caught.value)
    assert (folder / "t.parquet").exists()
    shutil.rmtree(folder)
    assert make(tmp_path).path == folder


def test_a_line_of_the_journal_that_a_full_disk_cut_off_spoils_no_other(tmp_path: Path) -> None:
    with Store(tmp_path).begin("demo", KEY, QUIET) as out:
        with (out.scratch / JOURNAL).open("a") as file:
            file.write("t.parq")
        write_table([ROW], out.scratch / "draft.parquet", POLICIES)
        out.commit_shard("t.parquet", out.scratch / "draft.parquet")
        assert "t.parquet" in finish(out).manifest.files


def test_a_shard_that_changed_since_it_was_committed_is_named_before_a_stage_goes_on_from_it(tmp_path: Path) -> None:
    with Store(tmp_path).begin("demo", KEY, QUIET) as out:
        fill(out)
        shard = out.committed()["t.parquet"]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    changed = pytest.raises(DataError, match=r"t\.parquet: its bytes changed since the stage committed it")
    with changed, Store(tmp_path).begin("demo", KEY, QUIET):
        pytest.fail("it was taken up")
    shard.unlink()
    assert make(tmp_path).manifest.files["t.parquet"].rows == 1


def test_a_shard_of_which_the_journal_was_told_and_that_never_came_may_come_with_other_bytes(tmp_path: Path) -> None:
    with Store(tmp_path).begin("demo", KEY, QUIET) as out:
        fill(out)
        other = out.scratch / "other"
        other.write_bytes(b"never moved")
        Journal(out.scratch / JOURNAL).enter({"t.parquet": other})
    assert make(tmp_path).manifest.files["t.parquet"].rows == 1


def test_a_folder_in_the_place_of_a_manifest_is_named(tmp_path: Path) -> None:
    path = make(tmp_path).path / MANIFEST
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="not a manifest") as caught:
        read_manifest(path)
    assert str(path) in str(caught.value)
