"""The short form of the long run (`make fuzz MINUTES=60`): fixed seeds, and what once fell.

A file `found/records/NAME/…` is a form of the record NAME, with `__` for slashes; `found/traces/FORMAT/…` a file of
traces that is read in a format, or in the one that it is recognised as.
"""

from __future__ import annotations

import gc
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import records, traces
from tests.fuzz.forged import Forger, commands_for
from tests.fuzz.mutate import RAW, mutated, resealed
from tests.fuzz.records import RECORDS, Record
from tests.fuzz.runs import COMMANDS, judge_commands, spoilt_run, whole_run

HERE = Path(__file__).parent / "found"
FOUND = sorted(path.relative_to(HERE) for path in HERE.glob("*/*/*"))
BY_NAME = {record.name: record for record in RECORDS}
TRACES, FORMS = 12, 25
"""Inputs of a format, and forms of a record."""
FORGERIES = 24
"""Parts of a run's records that are made up."""
names = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    records.CACHE[:] = [folder]
    return folder


@names
def test_spoilt_forms_of_a_file_are_read_or_refused_by_its_name(record: Record, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "seeds").mkdir()
    seeds = record.seeds(tmp_path / "seeds")
    told = []
    for seed in range(FORMS if record.name != "answer.json" else 6):
        draw, folder = Random(seed), tmp_path / str(seed)
        data = mutated(draw.choice(seeds), seeds, draw)
        told.append(record.judge(resealed(data, draw) if record.sealed else data, folder))
    if record.name != "answer.json":  # whose reader takes the refusal itself, and looks for the key in it
        assert any(told), "nothing that was spoilt was refused"


@names
def test_a_whole_file_is_read(record: Record, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "seeds").mkdir()
    for place, data in enumerate(record.seeds(tmp_path / "seeds")):
        if record.name != "answer.json":
            assert record.judge(data, tmp_path / str(place)) is None


@pytest.mark.parametrize("raw", range(len(RAW)), ids=lambda place: ascii(RAW[place][:12].decode(errors="replace")))
def test_what_no_encoder_writes_is_read_or_refused_in_every_record(raw: int, cache: Path, tmp_path: Path) -> None:
    told = []
    for record in RECORDS:
        if record.name.endswith(("json", "jsonl")) and record.name != "answer.json":
            told.append(record.judge(RAW[raw], tmp_path / "whole" / record.name.replace("/", "_")))
            record.judge(b'{"name": ' + RAW[raw] + b"}", tmp_path / "part" / record.name.replace("/", "_"))
    assert sum(map(bool, told)) > len(told) / 2, "most records are no such thing, and say so"


@pytest.mark.parametrize("name", traces.FORMATS)
def test_spoilt_traces_are_read_or_refused_and_accounted(name: str, cache: Path, tmp_path: Path) -> None:
    everything = traces.seeds("auto")
    seeds = traces.seeds(name) or everything
    held = 0
    for seed in range(TRACES):
        draw = Random(f"{name} {seed}")
        data = mutated(draw.choice(seeds), everything, draw)
        (tmp_path / "input").write_bytes(traces.tables(data, draw) if seed % 6 == 5 else data)
        held += traces.judge(tmp_path / "input", name, tmp_path, traces.assembler_in(cache))
    assert held > 0, "nothing was read or refused"
    gc.collect()


@pytest.mark.parametrize("found", FOUND, ids=str)
def test_what_once_fell_does_not_fall(found: Path, cache: Path, tmp_path: Path) -> None:
    data = (HERE / found).read_bytes()
    if found.parts[0] == "records":
        BY_NAME[found.parts[1].replace("__", "/")].judge(data, tmp_path)
    else:
        (tmp_path / "input").write_bytes(data)
        assert traces.judge(tmp_path / "input", found.parts[1], tmp_path, traces.assembler_in(cache)) > 0


def test_a_good_file_among_spoilt_ones_is_in_the_snapshot(cache: Path, tmp_path: Path) -> None:
    everything = traces.seeds("auto")
    spoilt = [mutated(Random(seed).choice(everything), everything, Random(seed)) for seed in range(8)]
    spoilt += [(HERE / path).read_bytes() for path in FOUND if path.parts[0] == "traces"]
    assert traces.is_rollout(traces.GOOD, traces.neighbours(spoilt, tmp_path))


def test_what_was_made_up_with_digests_that_follow_is_refused_by_name_or_changes_nothing(
    cache: Path, tmp_path: Path
) -> None:
    whole, draw = whole_run(cache), Random(0)
    forger, commands = Forger(whole, cache / "own" / "recipe.toml", tmp_path), commands_for(whole)
    said = []
    for forgery in draw.sample(forger.forgeries, FORGERIES):
        said += forger.judge(forgery, draw.sample(commands, 2))
    codes = [answer.code for answer in said]
    assert codes.count(3) > FORGERIES / 4, "hardly anything was refused"
    assert codes.count(0) > FORGERIES / 4, "hardly anything was answered"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_commands_on_a_run_with_a_spoilt_file_answer_or_refuse(seed: int, cache: Path, tmp_path: Path) -> None:
    folder, name = spoilt_run(cache, tmp_path, Random(seed))
    codes = judge_commands(folder, cache, tmp_path)
    assert len(codes) == len(COMMANDS)
    if name == "report.json" or name.endswith(".lock"):
        assert not any(codes), "nobody reads it"
    elif name.endswith(".parquet"):
        assert codes[COMMANDS.index(("verify", "{run}"))] == 3
