"""The chains of records, and what is read out of them: no model is needed."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.release.chain import append, held, read_chain
from pipeline.release.early import why_stop
from pipeline.release.openings import NAME, note_opening, openings
from pipeline.release.records import decisions, released, write
from pipeline.release.standing import history
from schemas.decisions import Decision, Evidence, Opening
from schemas.errors import DataError
from schemas.recipe import Recipe

RECIPE = {
    "name": "made-up",
    "model": {"base": "tiny-random"},
    "program": {"factory": "a:b", "metric": "a:c"},
    "examples": {"path": "data.csv", "inputs": ["x"]},
}


def recipe(**gate: object) -> Recipe:
    return Recipe.model_validate({**RECIPE, "gate": gate})


def opened(path: Path, number: int) -> None:
    with held(path):
        found = read_chain(path, Opening)
        append(path, found, Opening(at="now", split="test", scores=(str(number),)))


def evidence(*, improved: bool) -> Evidence:
    return Evidence(
        ledger="looks.jsonl", look="l", k=1, alpha=0.05, alpha_k=0.03, split="dev", against="p0", scores="s",
        against_scores="t", n=9, score=0.5, against_score=0.4, estimate=0.1, lower=0.01, p=0.01, low=None, high=None,
        sign_flip_p=None, mcnemar_p=None, improved=improved,
    )  # fmt: skip


def moved(run: Path, policy: int, kind: str = "gate", *, improved: bool = True, verdict: str = "released") -> Decision:
    return write(
        run,
        decisions(run),
        kind=kind,
        verdict=verdict,
        policy=f"p{policy}",
        position=policy,
        adapter=f"a{policy}" if policy else None,
        prompts=None,
        scores=None,
        previous="p0",
        previous_adapter=None,
        evidence=evidence(improved=improved),
        reason="a test",
    )


def test_records_of_several_processes_at_once_are_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    workers = [multiprocessing.get_context("fork").Process(target=opened, args=(path, number)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(item.scores[0] for item in read_chain(path, Opening)) == list("012345")


@pytest.mark.parametrize("more", [b"\xc3", b"x", b'{"ax', b"\0" * 40, b" "])
def test_bytes_at_the_end_that_begin_no_record_are_told(tmp_path: Path, more: bytes) -> None:
    path = tmp_path / "records.jsonl"
    opened(path, 1)
    whole = path.read_bytes()
    path.write_bytes(whole + more)
    with pytest.raises(DataError, match=f"its last {len(more)} bytes are no record that was being written"):
        read_chain(path, Opening)
    path.write_bytes(whole + whole[: len(more)])
    assert len(read_chain(path, Opening)) == 1


@settings(deadline=None, max_examples=40)
@given(cut=st.integers(0, 400))
def test_a_line_that_was_cut_off_never_counted_and_the_next_takes_its_place(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("chain") / "records.jsonl"
    opened(path, 0)
    first = path.read_bytes()
    opened(path, 1)
    path.write_bytes(path.read_bytes()[: len(first) + min(cut, len(first) - 1)])
    assert len(read_chain(path, Opening)) == 1
    opened(path, 2)
    assert [item.scores for item in read_chain(path, Opening)] == [("0",), ("2",)]


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_change_of_a_byte_of_a_chain_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("chain") / "records.jsonl"
    for number in range(3):
        opened(path, number)
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 2))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != whole[place]))
    path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
    with pytest.raises(DataError, match=r"records\.jsonl, line"):
        read_chain(path, Opening)


def test_an_opening_is_counted_once_whatever_is_asked_again(tmp_path: Path) -> None:
    assert note_opening(tmp_path, "test", ["a", "b"])
    assert not note_opening(tmp_path, "test", ["b", "a"])
    assert note_opening(tmp_path, "test", ["a", "c"])
    assert [item.scores for item in openings(tmp_path)] == [("a", "b"), ("c",)]
    (tmp_path / NAME).write_text("{}\n")
    with pytest.raises(DataError, match="line 1: not a record of this release"):
        openings(tmp_path)


def test_a_decision_is_never_written_over_another(tmp_path: Path) -> None:
    moved(tmp_path, 1)
    with pytest.raises(DataError, match="is there already"):
        write(tmp_path, [], **decisions(tmp_path)[0].model_dump(exclude={"number", "parent", "at", "digest", "format"}))
    assert len(decisions(tmp_path)) == 1
    assert [path.name for path in (tmp_path / "decisions").iterdir()] == ["0001.json"]


@settings(deadline=None, max_examples=40)
@given(moves=st.lists(st.integers(1, 5), max_size=8), backs=st.integers(0, 4))
def test_what_is_released_is_what_the_newest_move_says_and_rollbacks_end_at_the_base(
    tmp_path_factory: pytest.TempPathFactory, moves: list[int], backs: int
) -> None:
    run = tmp_path_factory.mktemp("run")
    for policy in moves:
        moved(run, policy)
    for _ in range(backs):
        past = history("p0", decisions(run))
        if len(past) > 1:
            moved(run, int(past[-2].policy[1:]), "rollback")
            assert len(history("p0", decisions(run))) < len(past)
    past = history("p0", decisions(run))
    assert past[0].policy == "p0"
    found = released(run)
    assert (found.policy if found else "p0") == past[-1].policy


@pytest.mark.parametrize(
    ("gains", "position", "stops"),
    [([], 1, False), ([], 2, True), ([1], 2, False), ([1], 3, True), ([1, 3], 4, False), ([5], 2, True)],
)
def test_a_run_ends_after_so_many_iterations_without_a_gain(
    tmp_path: Path, gains: list[int], position: int, stops: bool
) -> None:
    for policy in range(1, 6):
        moved(tmp_path, policy, improved=policy in gains, verdict="kept")
    policies = [f"p{place}" for place in range(6)]
    made = decisions(tmp_path)
    assert (why_stop(recipe(patience=2), policies, made, position) is not None) is stops
    assert why_stop(recipe(), policies, made, position) is None
    others = [f"q{place}" for place in range(6)]  # another recipe's policies: those gains were not theirs
    assert (why_stop(recipe(patience=2), others, made, position) is None) is (position < 2)


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ({"rule": "never", "patience": 2}, "take another rule, or take patience out"),
        ({"ledger": "looks"}, "expected the path of a .jsonl file"),
        ({"alpha": 0.5}, "less than 0.5"),
        ({"guards": {"kind": -0.1}}, "greater than or equal to 0"),
    ],
)
def test_a_gate_that_makes_no_sense_is_refused(gate: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe(**gate)
