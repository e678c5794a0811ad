"""The sampling benchmark: what it counts, what it writes, and that the README shows it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import dspy
import pytest

from schemas.execution import Execution
from stages.engines.interface import Request, Sampling
from tests.benchmarks.rollout_contestants import one_at_a_time
from tests.benchmarks.rollout_meter import Meter, cpu_seconds, peak_bytes
from tests.benchmarks.rollout_plain import devset, plain_program, scored
from tests.benchmarks.rollout_summary import in_readme, joined, summary, table
from tests.benchmarks.rollout_workloads import read_requests, task, write_requests
from tests.test_e2e.kit import ROOT
from tests.test_stages.programs_kit import CharEngine

RESULT = ROOT / "data" / "baselines" / "rollout.json"


def figures(speed: float, **more: Any) -> dict[str, Any]:
    return {
        "engine": "e",
        "seconds": 1.0,
        "cpu_seconds": 2.0,
        "generated_per_second": speed,
        "prefilled_per_second": 1.0,
        "peak_mib": 1.0,
        **more,
    }


def test_the_readme_shows_the_figures_that_are_kept() -> None:
    readme = (ROOT / "README.md").read_text()
    kept = json.loads(RESULT.read_text())
    assert in_readme(readme, RESULT.name, kept) == readme, (
        f"type python -m tests.benchmarks.rollout_summary data/baselines/{RESULT.name} README.md"
    )


def test_a_table_takes_the_place_of_the_old_one() -> None:
    counts = {"rollouts": 8, "plain_rollouts": 8, "concurrency": 4}
    result = {"counts": {"banking77": counts}, "threads": 2, "device": "d", "workloads": {"banking77": {}}}
    written = in_readme("above\n<!-- a.json -->\nold\n<!-- /a.json -->below\n", "a.json", result)
    assert written.startswith("above\n<!-- a.json -->\nBanking77: 8 rollouts, 4 in flight. On d")
    assert written.endswith("|\n<!-- /a.json -->below\n")
    assert "old" not in written


def test_a_new_result_keeps_what_was_measured_of_others_on_the_same_counts() -> None:
    many, few = ({"rollouts": count, "plain_rollouts": count, "concurrency": count} for count in (64, 8))
    old = {
        "dtype": "float32",
        "packages": {"vllm": {"vllm": "1"}},
        "counts": {"papillon": many, "multihop": many},
        "workloads": {"papillon": {"ours": 1, "plain": 2}, "multihop": {"ours": 3, "plain": 4}},
    }
    new = {
        "dtype": "float32",
        "packages": {"transformers": {"torch": "2"}},
        "counts": {"banking77": many, "papillon": many, "multihop": few},
        "workloads": {"banking77": {"ours": 5}, "papillon": {"ours": 6}, "multihop": {"ours": 7}},
    }
    found = joined(old, new)
    assert found["counts"] == {"banking77": many, "papillon": many, "multihop": few}
    assert list(found["workloads"]) == ["banking77", "papillon", "multihop"]
    assert found["workloads"] == {
        "banking77": {"ours": 5},
        "papillon": {"ours": 6, "plain": 2},
        "multihop": {"ours": 7},
    }
    assert found["packages"] == {"vllm": {"vllm": "1"}, "transformers": {"torch": "2"}}


def test_workloads_of_other_counts_are_told_apart() -> None:
    counts = {name: {"rollouts": 64, "plain_rollouts": 8, "concurrency": 64} for name in ("banking77", "papillon")}
    counts["multihop"] = {"rollouts": 24, "plain_rollouts": 24, "concurrency": 24}
    result = {"counts": counts, "threads": 2, "device": "d", "workloads": {}}
    assert (
        "\nBanking77, PAPILLON: 64 rollouts, 64 in flight; the plain ways made 8 of them. "
        "multi-hop: 24 rollouts, 24 in flight. On d, 2 threads."
    ) in in_readme("<!-- a.json -->\n<!-- /a.json -->", "a.json", result)


def test_wanted_ratios_are_told_as_they_are() -> None:
    found = {"banking77": {"ours": figures(80.0), "ceiling": figures(100.0), "plain": figures(10.0)}}
    wanted = summary(found)["wanted"]
    assert wanted["banking77: ours of the engine's ceiling"] == {
        "wanted": 0.9,
        "found": 0.8,
        "met": False,
        "by_cpu_seconds": 0.8,
    }
    assert wanted["banking77: ours to one call at a time"]["met"] is True
    nothing = {"wanted": 3.0, "found": None, "met": None, "by_cpu_seconds": None}
    assert wanted["banking77: ours to plain generate"] == nothing


def test_a_contestant_that_had_less_of_the_machine_is_no_slower_by_cpu_seconds() -> None:
    found = {"multihop": {"ours": figures(50.0, seconds=2.0), "ceiling": figures(100.0)}}
    told = summary(found)["wanted"]["multihop: ours of the engine's ceiling"]
    assert (told["found"], told["by_cpu_seconds"]) == (0.5, 1.0)
    assert "| 50 % | 100 % | 50 % |" in table(found)


def test_a_slow_engine_does_not_flatter_its_ratio() -> None:
    slow, fast = {"ours": figures(95.0), "ceiling": figures(100.0)}, {"vllm_ceiling": figures(400.0)}
    assert summary({"multihop": slow})["of_best_ceiling"]["multihop"]["ours"] == 0.95
    assert summary({"multihop": slow | fast})["of_best_ceiling"]["multihop"]["ours"] == 95 / 400


def test_a_contestant_that_failed_is_a_row_and_a_ratio_of_nothing() -> None:
    found = {"papillon": {"ours": figures(1.0), "ceiling": {"failed": "out of memory"}}}
    assert [line for line in table(found).splitlines() if "failed" in line]
    assert summary(found)["wanted"]["papillon: ours of the engine's ceiling"]["met"] is None


def test_what_an_engine_was_asked_comes_back_from_its_file(tmp_path: Path) -> None:
    asked = [Request((1, 2), Sampling(0.5, 0.9, 8, 5), 2**63 - 1), Request((3,), Sampling(temperature=0), 7)]
    write_requests(tmp_path / "r.json", asked)
    assert read_requests(tmp_path / "r.json") == asked


def test_time_inside_the_engine_is_apart_from_time_outside() -> None:
    engine: Any = CharEngine(lambda prompt, request: time.sleep(0.02) or "ab")
    meter = Meter(engine)
    ask = one_at_a_time(engine)
    for _ in range(3):
        assert ask([{"role": "user", "content": "x"}], Sampling()) == "ab"
        time.sleep(0.05)
    found = meter.figures(3)
    assert found["calls"] == 3
    assert found["completion_tokens"] == 9
    assert 0.06 <= found["inside_seconds"] < found["seconds"] - 0.15
    outside = found["seconds"] - found["inside_seconds"]
    assert found["outside_ms_per_call"] == pytest.approx(1000 * outside / 3)


@pytest.mark.parametrize(("workload", "calls"), [("banking77", 8), ("papillon", 24), ("multihop", 56)])
def test_the_plain_way_runs_the_program_that_the_stage_runs(tmp_path: Path, workload: str, calls: int) -> None:
    execution = Execution(cache=str(tmp_path / "cache"))
    made = task(workload, tmp_path / "in", "tiny-random", "float32", 8, execution)
    asked: list[tuple[str, Sampling]] = []

    def ask(messages: list[dict[str, str]], sampling: Sampling) -> str:
        asked.append((messages[-1]["content"], sampling))
        return "card arrival"

    program, adapter = plain_program(made, ask)
    with dspy.context(adapter=adapter, disable_history=True):
        found = dspy.Evaluate(devset=devset(made), num_threads=2, provide_traceback=True)(program, metric=scored(made))
    assert len(found.results) == 8
    assert len(asked) == calls
    sampled = {sampling.temperature for _, sampling in asked}
    assert sampled == {made.loaded.recipe.rollout.sampling.temperature} | ({0.0} if workload == "papillon" else set())


def test_processor_time_and_memory_are_those_of_the_process_and_its_children() -> None:
    before = cpu_seconds()
    assert sum(range(10_000_000))
    assert before < cpu_seconds() < before + 60
    assert 1 << 20 < peak_bytes() < 1 << 40
