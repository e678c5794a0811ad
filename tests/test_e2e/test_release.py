"""The release gate on real runs. Scores are what a file says when a policy is scored, so that they can be chosen."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pipeline.release.compare import comparisons
from pipeline.release.ledger import looks
from pipeline.release.records import decisions, released
from schemas.decisions import Decision
from schemas.recipe_gate import GateSection
from tests.test_e2e.kit import RECIPE, ROOT, keys, mmgrpo, own_recipe, run, state

SCORED = """
import json
from pathlib import Path

def program():
    def run(inputs, call):
        return call("write", [{"role": "user", "content": inputs["word"]}]).text + "."
    return run

def metric(example, output, calls):
    word = example.inputs["word"]
    if word.startswith("w"):
        return {"score": sum(c.islower() for c in output) / len(output), "kind": 0.5}
    told = json.loads((Path(__file__).parent / "scores.json").read_text())
    place = int(word[1:])
    if place < told["broken"]:
        raise RuntimeError("the judge is out")
    return {"score": float(place % 60 < 60 * told["score"]), "kind": told["kind"]}
"""
EXAMPLES = (
    "word,split,side\n"
    + "".join(f"w{i},train,left\n" for i in range(6))
    + "".join(f"d{i},{'dev' if i < 60 else 'test'},{'left' if i % 2 else 'right'}\n" for i in range(80))
)
WITH_GATE = (
    RECIPE.replace("[evaluate]", "[evaluate]\ndrift = false").replace(
        'inputs = ["word"]', 'inputs = ["word"]\nmetadata = ["side"]\ntest = "test"'
    )
    + "[gate]\n"
)


class Trained:
    """A user's folder, its run, and the scores that are told from now on."""

    def __init__(self, folder: Path, gate: str = "") -> None:
        self.recipe = own_recipe(folder / "own", program=SCORED, recipe=WITH_GATE + gate, examples=EXAMPLES)
        self.folder = folder / "run"

    def scores(self, score: float, kind: float = 0.5, broken: int = 0) -> None:
        (self.recipe.parent / "scores.json").write_text(json.dumps({"score": score, "kind": kind, "broken": broken}))

    def go(self, iterations: int, *options: str) -> int:
        return run(self.recipe, self.folder, "--iterations", str(iterations), *options)

    def told(self, *scores: float) -> list[Decision]:
        """Run one iteration a score, the first of which is the base's; the decisions made."""
        for iterations, score in enumerate(scores):
            self.scores(score)
            assert self.go(iterations) == 0
        return decisions(self.folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run whose first policy is better, and whose second is not."""
    trained = Trained(tmp_path_factory.mktemp("release"))
    trained.told(0.3, 0.7, 0.715)
    return trained


@pytest.fixture
def copied(made: Trained, tmp_path: Path) -> Path:
    """A copy of that run, to be spoilt."""
    return Path(shutil.copytree(made.folder, tmp_path / "run"))


def test_released_moves_for_a_significant_gain_and_not_for_another(made: Trained) -> None:
    first, second = decisions(made.folder)
    base, better, newest = state(made.folder).policies
    assert (first.verdict, first.policy, first.previous) == ("released", better, base)
    assert (second.verdict, second.policy, second.previous) == ("kept", newest, better)
    assert first.evidence is not None
    assert first.evidence.estimate == pytest.approx(0.4)
    assert first.evidence.improved
    assert second.evidence is not None
    assert second.evidence.against == better  # not the base, on which it is a gain
    found = released(made.folder)
    assert found is not None
    assert found.digest == first.digest


def test_training_goes_on_from_the_newest_adapter_whatever_is_released(made: Trained) -> None:
    assert len(set(state(made.folder).policies)) == 3
    assert len(state(made.folder).iterations) == 2


def test_a_run_that_is_repeated_spends_and_decides_nothing(made: Trained) -> None:
    before = (made.folder / "looks.jsonl").read_bytes(), decisions(made.folder)
    assert made.go(2) == 0
    assert ((made.folder / "looks.jsonl").read_bytes(), decisions(made.folder)) == before


def test_comparisons_are_those_that_the_gate_saw(made: Trained) -> None:
    base, better, newest = comparisons(made.folder)
    assert base.to_base is base.to_previous is None
    assert base.to_released is not None
    assert base.to_released.estimate == pytest.approx(
        -0.4
    )  # nothing looked at it: it is compared with what is released
    assert better.to_base == better.to_previous == better.to_released
    assert newest.to_base is not None
    assert newest.to_base.estimate == pytest.approx(25 / 60)
    assert newest.to_released == newest.to_previous
    assert newest.to_released is not None
    assert newest.to_released.estimate == pytest.approx(1 / 60)
    evidence = decisions(made.folder)[1].evidence
    assert evidence is not None
    assert newest.to_released.sign_flip_p == evidence.sign_flip_p == evidence.mcnemar_p == 1.0
    assert {(part.column, part.value) for part in newest.slices} == {("side", "left"), ("side", "right")}
    assert [part.score.n for part in newest.slices] == [30, 30]
    losses = [part.to_released.estimate for part in newest.slices if part.to_released]
    assert losses == sorted(losses)


@pytest.mark.parametrize("harm", ["edited", "lost"])
def test_the_report_says_what_verify_says_of_a_ledger_of_looks(
    copied: Path, capsys: pytest.CaptureFixture[str], harm: str
) -> None:
    ledger = copied / "looks.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"n":', b'"n":1') if harm == "edited" else b"")
    assert mmgrpo("verify", copied) == 3
    told = capsys.readouterr().err.splitlines()[1].removeprefix(f"  - {copied}/").rstrip(".")
    assert told.startswith("looks.jsonl")
    assert mmgrpo("report", copied) == 0
    first = json.loads((copied / "report.json").read_text())["notes"][0]
    assert first["level"] == "warning"
    assert f"do not verify (`mmgrpo verify`): {told}." in first["text"]


@pytest.mark.parametrize("gone", ["decision", "both"])
def test_a_run_killed_before_its_decision_makes_the_same_one_and_spends_nothing_more(
    made: Trained, copied: Path, capsys: pytest.CaptureFixture[str], gone: str
) -> None:
    before = decisions(copied)
    (copied / "decisions" / "0002.json").unlink()
    if gone == "both":  # killed before the look; what half a line says never counted
        lines = (copied / "looks.jsonl").read_bytes().splitlines(keepends=True)
        (copied / "looks.jsonl").write_bytes(lines[0] + lines[1][:40])
    else:
        assert mmgrpo("verify", copied) == 3
        assert "look 2 has no decision" in capsys.readouterr().err
    assert run(made.recipe, copied, "--iterations", "2") == 0
    assert mmgrpo("verify", copied) == 0
    told = [
        item.model_dump(exclude={"at", "digest", "parent", "evidence"}) for item in (before[1], *decisions(copied)[1:])
    ]
    assert told[0] == told[1]
    assert len(told) == len(looks(copied / "looks.jsonl")) == 2


def _edit(path: Path, change: Any) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


TAMPERED = {
    "a decision changed": (
        lambda run: _edit(run / "decisions" / "0002.json", lambda item: item.update(verdict="released")),
        "0002.json: its digest is",
    ),
    "a decision taken out": (lambda run: (run / "decisions" / "0001.json").unlink(), "0001.json is missing"),
    "the newest decision taken out": (
        lambda run: (run / "decisions" / "0002.json").unlink(),
        "look 2 has no decision",
    ),
    "a look changed": (
        lambda run: (run / "looks.jsonl").write_text((run / "looks.jsonl").read_text().replace('"k":2', '"k":9')),
        "looks.jsonl, line 2: its digest",
    ),
    "a look taken out": (
        lambda run: (run / "looks.jsonl").write_text((run / "looks.jsonl").read_text().splitlines()[1] + "\n"),
        "looks.jsonl, line 1: it does not follow",
    ),
    "the ledger emptied": (
        lambda run: (run / "looks.jsonl").write_text(""),
        "it lacks the look that decision 1 was made on",
    ),
    "a decision that is no JSON": (
        lambda run: (run / "decisions" / "0001.json").write_text("{"),
        "0001.json: not a decision of this release",
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_what_was_done_to_the_records_is_found(copied: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    spoil, message = TAMPERED[name]
    spoil(copied)
    assert mmgrpo("verify", copied) == 3
    assert message in capsys.readouterr().err


def test_a_run_without_its_ledger_or_with_another_one_does_not_go_on(
    made: Trained, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(made.recipe, copied, "--set", "gate.ledger=../other.jsonl", "--iterations", "2") == 3
    assert "which stands in 'looks.jsonl'" in capsys.readouterr().err
    (copied / "looks.jsonl").unlink()
    assert run(made.recipe, copied, "--iterations", "2") == 3
    assert "Restore the file" in capsys.readouterr().err
    assert mmgrpo("status", copied) == 3  # it would tell of an alpha that is spent
    assert "it lacks the look that decision 1 was made on" in capsys.readouterr().err
    assert not (copied / "looks.jsonl").exists()


def test_by_hand_nothing_is_released_without_evidence_and_everything_is_recorded(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = state(copied).policies[-1]
    assert mmgrpo("release", copied) == 3
    assert f"policy {newest[:12]} is not released: +0.017" in capsys.readouterr().err
    assert mmgrpo("release", copied, "--policy", "") == 2  # such as of a shell variable that is not set
    assert mmgrpo("release", copied, "--policy", "newest") == 3
    assert f"policy {newest[:12]} is not released" in capsys.readouterr().err
    assert mmgrpo("release", copied, "--force", "--reason", "the boss wants it", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["policy"], told["forced"]) == (newest, True)
    assert told["reason"].startswith("the boss wants it; +0.017")
    assert mmgrpo("release", copied) == 0  # it is released: nothing is written
    assert [item.verdict for item in decisions(copied)] == ["released", "kept", "kept", "kept", "released"]
    assert len(looks(copied / "looks.jsonl")) == 2
    assert mmgrpo("verify", copied) == 0


def test_rollback_leads_back_one_release_at_a_time_and_to_any_that_was(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, better, newest = state(copied).policies
    assert mmgrpo("release", copied, "--force") == 0
    for expected in (better, base):
        assert mmgrpo("rollback", copied, "--reason", "it broke") == 0
        assert decisions(copied)[-1].policy == expected
    assert released(copied) is None
    assert mmgrpo("rollback", copied) == 2
    assert "the base is released, and nothing was before it" in capsys.readouterr().err
    assert mmgrpo("rollback", copied, "--to", newest[:8]) == 0
    assert mmgrpo("rollback", copied, "--to", newest[:8]) == 2
    assert mmgrpo("rollback", copied, "--to", "base") == 0
    assert mmgrpo("rollback", copied, "--to", "f00") == 2
    assert "policy 'f00': there is none; known:" in capsys.readouterr().err
    assert mmgrpo("verify", copied) == 0


def test_what_learnt_from_forgotten_traces_is_not_released_even_by_force(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, better, newest = state(copied).policies
    mark = {"traces": [], "artifacts": [], "policies": [better, newest], "clean": None, "successor": None, "at": "now"}
    (copied / "tainted.json").write_text(json.dumps(mark))
    assert mmgrpo("release", copied, "--force") == 3
    assert "were to be forgotten" in capsys.readouterr().err
    assert mmgrpo("status", copied) == 0
    assert "what is released learnt from traces that were to be forgotten" in capsys.readouterr().out
    assert mmgrpo("rollback", copied) == 0
    assert mmgrpo("rollback", copied, "--to", better[:12]) == 3


def test_what_the_readme_types_works_on_a_run_and_its_section_is_a_recipe(copied: Path) -> None:
    text = (ROOT / "README.md").read_text().partition("## Release\n")[2].partition("\n## ")[0]
    section = re.search(r"```toml\n\[gate\]\n(.*?)```", text, re.DOTALL)
    assert section is not None
    assert GateSection.model_validate(tomllib.loads(section[1])).guards == {"quality": 0.02}
    block = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert block is not None
    commands = [line.partition("#")[0].replace("RUN", str(copied)).split()[1:] for line in block[1].splitlines()]
    assert [mmgrpo(*command) for command in commands] == [0, 3, 0]  # its newest policy is not shown to be better
    assert released(copied) is None


def test_status_says_what_is_released_and_what_is_left_of_alpha(
    made: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mmgrpo("status", made.folder, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["released"] == state(made.folder).policies[1]
    assert (made.folder / told["adapters"]["shared"] / "adapter_model.safetensors").exists()
    assert (told["looks"], told["decisions"]) == (2, 2)
    assert told["spent"] + told["left"] == pytest.approx(0.05)
    assert told["spent"] == pytest.approx(0.05 * 6 / 3.14159265**2 * (1 + 1 / 4))
    assert mmgrpo("status", made.folder) == 0
    assert "not shown to be better than the released" in capsys.readouterr().out


def test_the_released_policy_is_scored_anew_where_the_examples_are_others(made: Trained, copied: Path) -> None:
    """With another `evaluate.limit` and other policies, they are still compared with what is released."""
    before = released(copied)
    assert before is not None
    made.scores(0.9)
    options = ("--set", "evaluate.limit=50", "--set", "train.learning_rate=2e-3")
    assert run(made.recipe, copied, "--iterations", "1", *options) == 0
    assert before.policy not in state(copied).policies
    newest = decisions(copied)[-1]
    assert newest.evidence is not None
    assert (newest.previous, newest.evidence.n, newest.evidence.k) == (before.policy, 50, 3)
    assert newest.evidence.estimate == 0.0  # both were scored when the file said 0.9
    assert keys(copied)["evaluations"]["dev"].keys() == set(state(copied).policies)
    assert mmgrpo("verify", copied) == 0


@pytest.mark.parametrize("changed", ["evaluate.samples=2", "evaluate.sampling.temperature=0.5", "another metric"])
def test_the_released_policy_is_scored_anew_where_scores_are_made_in_another_way(
    made: Trained, copied: Path, tmp_path: Path, changed: str
) -> None:
    """Its old scores are of the same examples, but say nothing of what the new way would give."""
    before, recipe = released(copied), Path(shutil.copytree(made.recipe.parent, tmp_path / "own")) / made.recipe.name
    assert before is not None
    (recipe.parent / "scores.json").write_text(json.dumps({"score": 0.9, "kind": 0.5, "broken": 0}))
    options = ["--set", "train.learning_rate=2e-3"]
    if changed == "another metric":
        program = next(path for path in recipe.parent.glob("*.py"))
        program.write_text(SCORED.replace("< 60 * told", "<= 60 * told"))
    else:
        options += ["--set", changed]
    assert run(recipe, copied, "--iterations", "1", *options) == 0
    newest = decisions(copied)[-1]
    assert newest.evidence is not None
    assert newest.previous == before.policy not in state(copied).policies
    assert (newest.evidence.n, newest.evidence.estimate) == (60, 0.0)


def test_policies_that_were_scored_in_two_ways_are_not_compared(made: Trained, copied: Path) -> None:
    """With other settings of evaluation, and one iteration scored with them so far, the other is not scored."""
    base, first, newest = state(copied).policies
    old = keys(copied)["evaluations"]["dev"]
    made.scores(0.2)
    assert run(made.recipe, copied, "--iterations", "1", "--set", "evaluate.samples=2") == 0
    assert state(copied).policies == (base, first, newest)
    assert keys(copied)["evaluations"]["dev"].keys() == {base, first}
    assert [item.policy for item in comparisons(copied)] == [base, first]
    spent = (copied / "looks.jsonl").read_bytes()
    assert mmgrpo("release", copied, "--policy", newest) == 3  # on the scores that the gate compared, and no others
    assert decisions(copied)[-1].evidence == decisions(copied)[1].evidence
    assert (copied / "looks.jsonl").read_bytes() == spent
    assert run(made.recipe, copied, "--iterations", "2") == 0
    assert keys(copied)["evaluations"]["dev"] == old  # they were there all the time


def test_the_test_split_is_compared_alike_spends_no_look_and_is_counted_though_run_json_was_lost(
    made: Trained, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def opened() -> int:
        assert mmgrpo("evaluate", "--test", made.recipe, "--run-dir", copied, "--exec", "progress=off") == 0
        return state(copied).tests_opened

    spent = (copied / "looks.jsonl").read_bytes()
    made.scores(0.5)
    assert run(made.recipe, copied, "--iterations", "2") == 0
    assert opened() == opened() == 1
    told = capsys.readouterr().out
    better = decisions(copied)[0].policy
    for policy in state(copied).policies[1:]:
        assert f"  policy {policy[:12]}: +0.000 [+0.000, +0.000] on the base (sign flips p 1, McNemar p 1)" in told
    assert f"on policy {better[:12]}, which is released" in told
    assert [item.to_released for item in comparisons(copied, "test") if item.policy == better] == [None]
    (copied / "run.json").unlink()
    assert run(made.recipe, copied, "--iterations", "2") == 0
    assert state(copied).tests_opened == 1
    assert opened() == 1
    assert (copied / "looks.jsonl").read_bytes() == spent


def test_two_runs_with_one_ledger_share_its_looks(tmp_path: Path) -> None:
    first = Trained(tmp_path, 'ledger = "../looks.jsonl"\n')
    first.told(0.3, 0.3)
    first.folder = tmp_path / "second"
    first.scores(0.3)
    assert first.go(1, "--set", "seed=1") == 0
    assert [look.k for look in looks(tmp_path / "looks.jsonl")] == [1, 2]
    assert mmgrpo("verify", tmp_path / "run") == mmgrpo("verify", tmp_path / "second") == 0


def test_a_copy_of_a_run_spends_of_the_same_ledger_and_the_run_still_verifies(tmp_path: Path) -> None:
    trained = Trained(tmp_path, 'ledger = "../looks.jsonl"\n')
    trained.told(0.3, 0.3)
    shutil.copytree(trained.folder, tmp_path / "copy")
    trained.folder = tmp_path / "copy"
    assert trained.go(1, "--set", "evaluate.limit=50") == 0  # the same policies, other scores
    assert state(tmp_path / "copy").policies == state(tmp_path / "run").policies
    assert [look.n for look in looks(tmp_path / "looks.jsonl")] == [60, 50]
    assert mmgrpo("verify", tmp_path / "run") == mmgrpo("verify", tmp_path / "copy") == 0


def test_scores_that_an_outage_spoilt_release_nothing_and_spend_no_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = Trained(tmp_path)
    trained.scores(0.7, broken=40)
    assert trained.go(0) == 0
    trained.scores(0.7)
    assert trained.go(1) == 0
    base = state(trained.folder).policies[0]
    (spoilt,) = decisions(trained.folder)
    told = f"40 of 60 runs of policy {base[:12]} ended in metric_error"
    assert (spoilt.verdict, spoilt.evidence) == ("kept", None)
    assert told in spoilt.reason
    assert mmgrpo("status", trained.folder) == 0
    assert "the newest policy was not compared" in capsys.readouterr().out
    assert mmgrpo("release", trained.folder) == 3
    assert told in capsys.readouterr().err
    assert not (trained.folder / "looks.jsonl").exists()
    named = re.search(r"delete (artifacts/evaluate/\w+)", spoilt.reason)
    assert named is not None
    shutil.rmtree(trained.folder / named[1])
    assert trained.go(1) == 0
    mended = decisions(trained.folder)[-1].evidence
    assert mended is not None
    assert (mended.k, mended.estimate) == (1, 0.0)
    assert mmgrpo("verify", trained.folder) == 0


def test_a_better_policy_is_held_back_by_a_guarded_part_that_got_worse_and_by_an_alarm(tmp_path: Path) -> None:
    trained = Trained(tmp_path, "guards = { kind = 0.1 }\n")
    trained.told(0.3)
    trained.scores(0.8, kind=0.2)
    assert trained.go(1) == 0
    (decision,) = decisions(trained.folder)
    assert decision.verdict == "kept"
    assert decision.evidence is not None
    assert decision.evidence.improved
    assert not decision.evidence.guards[0].held
    assert "guard 'kind' not held: -0.300" in decision.reason
    trained.scores(0.8, kind=0.5)
    alarmed = ("--set", "evaluate.drift=true", "--set", "drift.max_kl=1e-9")
    assert trained.go(2, *alarmed) == 0
    kept = decisions(trained.folder)[-1]
    assert kept.verdict == "kept"
    assert kept.evidence is not None
    assert kept.evidence.improved
    assert kept.evidence.guards[0].held
    assert "above drift.max_kl" in kept.evidence.alarms[0]
    assert trained.go(3) == 0
    assert decisions(trained.folder)[-1].verdict == "released"


def test_a_run_without_significant_gains_ends_and_a_repeated_one_ends_where_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = Trained(tmp_path, "patience = 2\n")
    trained.told(0.3, 0.7)
    trained.scores(0.7)
    assert trained.go(9) == 0
    assert len(state(trained.folder).policies) == 4
    assert state(trained.folder).ended == (
        "no significant gain on dev since iteration 0, for 2 iterations (gate.patience = 2)"
    )
    before = decisions(trained.folder)
    capsys.readouterr()
    assert mmgrpo("plan", trained.recipe, "--run-dir", trained.folder, "--iterations", "9") == 0
    assert "ends early      the run\n                  no significant gain" in capsys.readouterr().out
    assert trained.go(9) == 0
    assert decisions(trained.folder) == before
    assert trained.go(4, "--set", "gate.patience=5") == 0
    assert state(trained.folder).ended is None
    assert len(state(trained.folder).policies) == 5
