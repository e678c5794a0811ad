"""The run's decisions and comparisons, as the report shows them."""

from __future__ import annotations

from pipeline.release.compare import Comparison, SliceScore, comparisons
from pipeline.release.records import decisions, released
from pipeline.reporting.data_gate import Decided, Gate, PolicyDifference
from pipeline.reporting.opened import OpenRun
from schemas.decisions import Decision

SLICES_SHOWN = 30


def collect_gate(run: OpenRun) -> Gate | None:
    """What was decided and why; None where no policy has been scored and nothing was decided.

    Raises:
        DataError: when the records of decisions are damaged.
    """
    made, compared, moved = decisions(run.folder), comparisons(run.folder), released(run.folder)
    if not made and not compared:
        return None
    slices = _slices(compared)
    return Gate(
        rule=run.recipe.gate.rule,
        decisions=tuple(map(_decided, made)),
        released=moved.policy if moved else None,
        differences=tuple(
            PolicyDifference(row.position, row.policy, row.to_base, row.to_previous, row.to_released)
            for row in compared
        ),
        slices=slices[:SLICES_SHOWN],
        slices_left_out=max(0, len(slices) - SLICES_SHOWN),
    )


def _slices(compared: list[Comparison]) -> tuple[SliceScore, ...]:
    return compared[-1].slices if compared else ()


def _decided(record: Decision) -> Decided:
    found = record.evidence
    return Decided(
        number=record.number,
        kind=record.kind,
        verdict=record.verdict,
        policy=record.policy,
        position=record.position,
        at=record.at,
        reason=record.reason,
        forced=record.forced,
        look=found.k if found else None,
        alpha=found.alpha if found else None,
        spent=found.alpha_k if found else None,
        estimate=found.estimate if found else None,
        lower=found.lower if found else None,
        p=found.p if found else None,
        alarms=found.alarms if found else (),
    )
