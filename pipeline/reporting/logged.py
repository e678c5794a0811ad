"""The snapshot of traces that a run uses: how many of its calls are of which fidelity, and why they are not better."""

from __future__ import annotations

from pipeline.reporting.data import Logged
from pipeline.reporting.opened import OpenRun


def collect_logged(run: OpenRun) -> Logged | None:
    """What the snapshot's manifest counts; None for a run without one."""
    found = run.store.find("ingest", run.state.setup.get("ingest", ""))
    if found is None:
        return None
    figures = found.manifest.metrics
    return Logged(
        rollouts=figures["rollouts"],
        invocations=figures["invocations"],
        fidelity=dict(figures["fidelity"]),
        reasons=dict(figures["fidelity_reasons"]),
    )
