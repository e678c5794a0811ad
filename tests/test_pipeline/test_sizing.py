"""What a night needs, on paper: the README's table is the one that the sums make, from the figures that it shows."""

from __future__ import annotations

import pytest

from tests.benchmarks.sizing import GROUP_S, INGEST_CORE_S, NIGHT_S, Row, in_readme, rows
from tests.test_e2e.kit import ROOT

README = (ROOT / "README.md").read_text()


def test_the_table_of_the_readme_is_the_one_that_the_sums_make() -> None:
    assert in_readme(README) == README, "python -m tests.benchmarks.sizing README.md"


def test_figures_that_no_file_holds_stand_in_the_readme() -> None:
    measured = README.partition("## Measured")[2]
    assert f"| {GROUP_S} s (1.4 M invocations a second)" in measured
    assert f"in two: 49 s (12 times; {INGEST_CORE_S:.0f} CPU seconds)" in measured
    assert "1,000,268 invocations" in measured


def test_every_rate_says_where_it_is_from_and_is_possible() -> None:
    assert {row.source for row in rows()} == {"measured", "assumed"}
    assert all(0 < row.each < NIGHT_S / 1000 for row in rows())
    assert all(row.source == "assumed" for row in rows() if row.unit == "card"), "no card was measured here"


@pytest.mark.parametrize(
    ("each", "rollouts", "told"),
    [
        (1e-9, 1000, "1 s"),
        (0.05, 1000, "50 s"),
        (0.36, 1000, "6 min"),
        (3.6, 1000, "1.0 h"),
        (3.6, 10**7, "10,000.0 h"),
    ],
)
def test_times_are_told_in_units_a_person_reads(each: float, rollouts: int, told: str) -> None:
    assert Row("stage", "core", each, "measured", "nothing").needed(rollouts) == told
