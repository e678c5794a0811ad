"""Our own tables as traces: nothing that training needs is lost, and nothing is taken for better than it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from schemas.canonical import canonical_json, digest_file
from schemas.examples import EXAMPLES, example_row
from schemas.parquet import write_table
from schemas.recipe_ingest import IngestSection
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from schemas.table import VERSION_KEY
from stages.engines.models import BaseModel, eos_ids, load_tokenizer
from stages.ingest.assemble import Assembled, Assembler, Trace
from stages.ingest.tokens import Encoder
from tests.test_stages.engines_kit import tiny
from tests.test_stages.ingest_kit import Held, read_file

EXAMPLE = example_row("train", {"question": "hi"}, None, None)
SAID = canonical_json([{"content": "hi", "role": "user"}])
ROLLOUT = {
    "example_id": EXAMPLE["example_id"],
    "rollout_index": 0,
    "rollout_id": "r0",
    "iteration": 2,
    "source": "student",
    "policy": "pi",
    "program": "P",
    "reward": 0.5,
    "reward_parts": '{"a":0.5}',
    "status": "ok",
    "error": None,
    "output": '"yes"',
    "seed": 7,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    return tiny(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def encoder(base: BaseModel) -> Encoder:
    return Encoder(load_tokenizer(base), frozenset(eos_ids(base)))


def invocation(index: int = 0, **changed: Any) -> dict[str, Any]:
    row = dict.fromkeys(INVOCATIONS.schema.names)
    row |= {"rollout_id": "r0", "call_index": index, "module": "write", "invocation_index": index, "attempt": 0}
    row |= {"lm": "student", "messages": SAID, "parse_status": "failed", "parsed_share": 0.25, "trainable": True}
    row |= {"concurrent": False, "fidelity": "partial", "temperature": 1.0, "finish_reason": "stop", "adapter": "A"}
    return row | changed


def exact(base: BaseModel, index: int = 0, **changed: Any) -> dict[str, Any]:
    ids = [int(token) for token in load_tokenizer(base).encode("yes", add_special_tokens=False)]
    tokens = {"prompt_ids": ids, "completion_ids": ids, "sampling_logprobs": [-0.5] * len(ids), "completion": "yes"}
    more = {"fidelity": "exact", "logprob_kind": "processed", "tokenizer": base.tokenizer, "template": "T"}
    return invocation(index, **(tokens | more | changed))


def tables(folder: Path, calls: list[dict[str, Any]], *rollouts: dict[str, Any], examples: bool = True) -> Path:
    """A folder of tables; returns that of rollouts."""
    folder.mkdir(parents=True, exist_ok=True)
    write_table(list(rollouts) or [ROLLOUT], folder / "rollouts.parquet", ROLLOUTS)
    write_table(calls, folder / "invocations.parquet", INVOCATIONS)
    if examples:
        write_table([EXAMPLE], folder / "examples.parquet", EXAMPLES)
    return folder / "rollouts.parquet"


def assembled(found: Held, base: BaseModel, encoder: Encoder, **section: Any) -> Assembled:
    assert not found.refused, found.refused
    digests = {"tokenizer": base.tokenizer, "template": base.template}
    assembler = Assembler(["question"], IngestSection(**section), encoder, digests)
    (made,) = assembler.each([Trace(found.spans[0].trace, "mmgrpo_tables", found.spans, found.scores)])
    return made


def test_an_exact_row_stays_what_it_was(base: BaseModel, encoder: Encoder, tmp_path: Path) -> None:
    row = exact(base, inputs='{"a":"b"}', outputs='"yes"', extends_call=None, engine="vllm-1")
    found = read_file(tables(tmp_path, [row]))
    assert found.format == "mmgrpo_tables"
    made = assembled(found, base, encoder, inputs={"question": "somewhere.else"})
    assert made.rollout is not None
    assert {name: made.rollout[name] for name in ROLLOUT if name not in _OURS} == {
        name: value for name, value in ROLLOUT.items() if name not in _OURS
    }
    (kept,) = made.invocations
    assert {name for name in row if kept[name] != row[name]} == {"rollout_id"}
    assert made.inputs == {"question": "hi"}


_OURS = ("example_id", "rollout_index", "rollout_id", "iteration", "source")


def test_how_a_failed_run_ended_is_kept(base: BaseModel, encoder: Encoder, tmp_path: Path) -> None:
    failed = ROLLOUT | {"status": "parse_failed", "reward": None, "error": "no letter", "output": None}
    made = assembled(read_file(tables(tmp_path, [exact(base)], failed)), base, encoder)
    assert made.rollout is not None
    assert (made.rollout["status"], made.rollout["error"], made.rollout["reward"]) == (
        "parse_failed",
        "no letter",
        None,
    )
    assert made.invocations[0]["parsed_share"] == 0.25


@pytest.mark.parametrize(
    ("changed", "fidelity", "reason"),
    [
        ({"tokenizer": "another"}, "text", "other_tokenizer"),
        ({"fidelity": "text", "sampling_logprobs": None, "logprob_kind": None}, "text", "no_ids"),
        ({"fidelity": "partial"}, "partial", "partial_before"),
        ({"lm": "judge", "trainable": False}, "partial", "other_lm"),
        ({"fidelity": "ids", "sampling_logprobs": None, "logprob_kind": None}, "ids", "no_logprobs"),
    ],
)
def test_no_row_becomes_better_than_it_was(
    base: BaseModel, encoder: Encoder, tmp_path: Path, changed: dict[str, Any], fidelity: str, reason: str
) -> None:
    made = assembled(read_file(tables(tmp_path, [exact(base, **changed)])), base, encoder)
    assert made.fidelity == [(fidelity, reason)]
    assert made.invocations[0]["lm"] == changed.get("lm", "student")
    assert made.rollout is not None
    assert made.rollout["policy"] == "pi"


def test_a_logged_score_that_the_recipe_names_goes_before_the_table(
    base: BaseModel, encoder: Encoder, tmp_path: Path
) -> None:
    from stages.ingest.normal import Score

    found = read_file(tables(tmp_path, [exact(base)]))
    found.scores.append(Score("r0", "people", 0.9))
    for section, reward in (({}, 0.5), ({"reward": "people"}, 0.9), ({"reward": "others"}, 0.5)):
        made = assembled(found, base, encoder, **section)
        assert made.rollout is not None
        assert made.rollout["reward"] == reward


# what is refused


def reasons(found: Held) -> list[str]:
    return [item.reason for item in found.refused]


def test_other_files_of_an_artifact_hold_no_traces_and_are_no_trouble(base: BaseModel, tmp_path: Path) -> None:
    tables(tmp_path, [exact(base)])
    (tmp_path / "manifest.json").write_text(
        json.dumps({"stage": "rollout", "stage_version": 1, "payload": {}, "manifest_digest": "", "files": {}})
    )
    (tmp_path / "telemetry.json").write_text(json.dumps({"seconds": 1.0, "core_seconds": 1.0, "gpu_seconds": 0.0}))
    for name in ("examples.parquet", "invocations.parquet", "manifest.json", "telemetry.json"):
        found = read_file(tmp_path / name)
        assert (found.format, found.spans, found.refused) == ("mmgrpo_tables", [], [])


def test_bytes_that_are_not_those_of_the_manifest_are_refused(base: BaseModel, tmp_path: Path) -> None:
    path = tables(tmp_path, [exact(base)])
    files = {name: {"sha256": digest_file(tmp_path / name)} for name in ("rollouts.parquet", "invocations.parquet")}
    (tmp_path / "manifest.json").write_text(json.dumps({"files": files}))
    assert reasons(read_file(path)) == []
    files["invocations.parquet"]["sha256"] = "0" * 64
    (tmp_path / "manifest.json").write_text(json.dumps({"files": files}))
    assert reasons(read_file(path)) == ["broken"]


def test_tables_of_another_version_are_refused(base: BaseModel, tmp_path: Path) -> None:
    path = tables(tmp_path, [exact(base)])
    calls = tmp_path / "invocations.parquet"
    table = pq.read_table(calls)
    older = {**table.schema.metadata, VERSION_KEY: b"2"}
    pq.write_table(table.replace_schema_metadata(older), calls)
    found = read_file(path)
    assert reasons(found) == ["unknown_version"]
    assert "version 2" in found.refused[0].detail


@pytest.mark.parametrize("lacking", ["rollouts", "invocations", "examples"])
def test_a_table_that_is_not_there_is_named(base: BaseModel, tmp_path: Path, lacking: str) -> None:
    path = tables(tmp_path, [exact(base)], examples=lacking != "examples")
    if lacking != "examples":
        (tmp_path / f"{lacking}.parquet").unlink()
    found = read_file(tmp_path / "invocations.parquet" if lacking == "rollouts" else path)
    assert reasons(found) == [{"examples": "unknown_example"}.get(lacking, f"no_{lacking}")]
    assert found.spans == []


def test_rollouts_of_teachers_are_refused_and_their_neighbours_read(base: BaseModel, tmp_path: Path) -> None:
    teacher = ROLLOUT | {"rollout_id": "r1", "source": "teacher:big"}
    path = tables(tmp_path, [exact(base), exact(base, rollout_id="r1")], ROLLOUT, teacher)
    found = read_file(path)
    assert (reasons(found), len(found.spans)) == (["of_a_teacher"], 2)


def test_rows_that_break_a_rule_are_refused(base: BaseModel, tmp_path: Path) -> None:
    path = tables(tmp_path, [exact(base)])
    calls = tmp_path / "invocations.parquet"
    table = pq.read_table(calls)
    column = table.column("fidelity").to_pylist()
    spoilt = table.set_column(table.schema.get_field_index("fidelity"), "fidelity", [["perfect"] * len(column)])
    pq.write_table(spoilt.replace_schema_metadata(table.schema.metadata), calls)
    assert reasons(read_file(path)) == ["broken"]


def test_tables_cut_short_are_refused(base: BaseModel, tmp_path: Path) -> None:
    path = tables(tmp_path, [exact(base)])
    for name in ("invocations.parquet", "rollouts.parquet"):
        whole = (tmp_path / name).read_bytes()
        for size in (3, 12, len(whole) // 2, len(whole) - 1):
            (tmp_path / name).write_bytes(whole[:size])
            assert read_file(path).refused
        (tmp_path / name).write_bytes(whole)
