"""What a run cost, what it left out, and which artifacts it consists of."""

from __future__ import annotations

from pipeline.reporting.data import ArtifactRef, Exclusion, StageCost
from pipeline.reporting.opened import STAGES, OpenRun, telemetry


def collect_costs(run: OpenRun) -> tuple[StageCost, ...]:
    """Telemetry summed per stage over the artifacts that the run chose, each counted once."""
    artifacts: dict[str, int] = {}
    silent: dict[str, int] = {}
    sums: dict[str, dict[str, float]] = {}
    for stage, _, key in run.chosen():
        artifact = run.store.find(stage, key)
        if artifact is None:
            continue
        figures = telemetry(artifact)
        artifacts[stage] = artifacts.get(stage, 0) + 1
        silent[stage] = silent.get(stage, 0) + (not figures)
        total = sums.setdefault(stage, {})
        for name, value in figures.items():
            total[name] = total.get(name, 0.0) + value
    return tuple(StageCost(stage, artifacts[stage], silent[stage], sums[stage]) for stage in STAGES if stage in sums)


def told_of(costs: tuple[StageCost, ...]) -> dict[str, float]:
    """Figures of all stages together, those of single LMs and of servers left out: the ledger has them."""
    total: dict[str, float] = {}
    for cost in costs:
        for name, value in cost.figures.items():
            if not name.startswith(("lm.", "server.")):
                total[name] = total.get(name, 0.0) + value
    return total


def total_seconds(costs: tuple[StageCost, ...]) -> float | None:
    """Recorded seconds of all stages, or None when no stage recorded any."""
    recorded = [cost.figures["seconds"] for cost in costs if "seconds" in cost.figures]
    return sum(recorded) if recorded else None


def collect_exclusions(run: OpenRun) -> tuple[Exclusion, ...]:
    """Rows left out, as the manifests count them, by stage, iteration and reason."""
    rows: list[Exclusion] = []
    for stage, iteration, key in run.chosen():
        artifact = run.store.find(stage, key)
        excluded = artifact.manifest.excluded if artifact else {}
        rows += [Exclusion(stage, iteration, reason, count) for reason, count in sorted(excluded.items())]
    return tuple(rows)


def collect_artifacts(run: OpenRun) -> tuple[ArtifactRef, ...]:
    """Every artifact that the run chose, with its digest and the commit of the code that made it."""
    rows: list[ArtifactRef] = []
    for stage, iteration, key in run.chosen():
        artifact = run.store.find(stage, key)
        commit = (artifact.manifest.provenance.get("code") or {}).get("commit") if artifact else None
        rows.append(ArtifactRef(stage, iteration, key, artifact.digest if artifact else None, commit))
    return tuple(rows)
