"""How far each policy is from the base, as its drift artifact says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.reporting.data_drift import Canaries, Drift, DriftRow
from pipeline.reporting.opened import OpenRun

FIGURES = (
    "calls",
    "kl_to_base",
    "entropy",
    "completion_tokens",
    "length_cut_share",
    "parse_failure_share",
    "top_completion_share",
    "top_completion_share_gain",
)


def collect_drift(run: OpenRun, split: str) -> Drift | None:
    """The drift of every policy whose was measured; None where none was."""
    found = dict(_measured(run, split))
    if not found:
        return None
    rows = [row for position, metrics in found.items() for row in _rows(position, metrics)]
    canaries = [
        Canaries(position, said["n"], said["same_share"], said["mean_kl"], tuple(said["changed"]))
        for position, metrics in found.items()
        if (said := metrics.get("canaries"))
    ]
    alarms = {position: tuple(metrics.get("alarms", ())) for position, metrics in found.items()}
    return Drift(tuple(rows), tuple(canaries), alarms)


def _measured(run: OpenRun, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
    keys = run.state.drifts.get(split, {})
    for policy in dict.fromkeys(run.state.policies):
        artifact = run.store.find("drift", keys[policy]) if policy in keys else None
        if artifact is not None:
            yield run.state.policies.index(policy), artifact.manifest.metrics


def _rows(position: int, metrics: Mapping[str, Any]) -> Iterator[DriftRow]:
    yield _row(position, None, metrics)
    by_module = metrics.get("by_module", {})
    for module in sorted(by_module) if len(by_module) > 1 else ():
        yield _row(position, module, by_module[module])


def _row(position: int, module: str | None, figures: Mapping[str, Any]) -> DriftRow:
    return DriftRow(position, module, **{name: figures.get(name) for name in FIGURES})
