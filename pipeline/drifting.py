"""What the drift stage said of a run's policies: the alarms, which keep a policy from being released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.runfile import RunFile, read_run, resolved
from pipeline.store import Store
from stages.contract import Artifact

_MEASURE = "`mmgrpo run RECIPE` does it"


def alarms(run: Path, policy: str) -> list[str]:
    """What of a policy's drift on the dev split is beyond the recipe's limits, in words; empty where nothing is.

    A limit that was set or changed and not yet looked at is an alarm too. So a policy without drift artifact has one,
    unless the recipe sets no limit.

    Args:
        run: the run folder.
        policy: digest of the policy.

    Raises:
        DataError: when run.json or the manifest is damaged, or the artifact is gone.
    """
    state = read_run(run)
    limits, artifact = resolved(run, state).drift, _drift(run, state, policy)
    if artifact is not None:
        looked = artifact.manifest.payload["recipe"]["drift"]
        news = [name for name in limits.set_ones if looked.get(name) != getattr(limits, name)]
        others = [f"drift.{name} is another than this policy was looked at with: {_MEASURE}" for name in news]
        return [*artifact.manifest.metrics["alarms"], *others]
    if not limits.set_ones:
        return []
    return [f"drift.{limits.set_ones[0]} is set, but the drift of this policy was not measured: {_MEASURE}"]


def drift_metrics(run: Path, state: RunFile, policy: str) -> dict[str, Any] | None:
    """The metrics of a policy's drift on the dev split; None where it was not measured.

    Raises:
        DataError: when the manifest is damaged, or the artifact is gone.
    """
    artifact = _drift(run, state, policy)
    return None if artifact is None else artifact.manifest.metrics


def _drift(run: Path, state: RunFile, policy: str) -> Artifact | None:
    key = state.drifts.get(resolved(run, state).examples.dev, {}).get(policy)
    return None if key is None else Store(run / "artifacts").open("drift", key)
