"""What the drift stage said of a run's policies: the alarms, which keep a policy from being released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.runfile import RunFile, read_run, resolved
from pipeline.store import Store


def alarms(run: Path, policy: str) -> list[str]:
    """What of a policy's drift on the dev split is beyond the recipe's limits, in words; empty where nothing is.

    A limit that was set and not yet looked at is an alarm too. So a policy without drift artifact has one, unless the
    recipe sets no limit.

    Args:
        run: the run folder.
        policy: digest of the policy.

    Raises:
        DataError: when run.json or the manifest is damaged, or the artifact is gone.
    """
    state = read_run(run)
    metrics = drift_metrics(run, state, policy)
    if metrics is not None:
        return list(metrics["alarms"])
    limits = [name for name, limit in sorted(resolved(run, state).drift) if limit is not None]
    if not limits:
        return []
    return [f"drift.{limits[0]} is set, but the drift of this policy was not measured: `mmgrpo run RECIPE` does it"]


def drift_metrics(run: Path, state: RunFile, policy: str) -> dict[str, Any] | None:
    """The metrics of a policy's drift on the dev split; None where it was not measured.

    Raises:
        DataError: when the manifest is damaged, or the artifact is gone.
    """
    key = state.drifts.get(resolved(run, state).examples.dev, {}).get(policy)
    return None if key is None else Store(run / "artifacts").open("drift", key).manifest.metrics
