"""How far logged calls can be trusted, as the manifest of a snapshot counts it: a picture, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from pipeline.reporting.plots import column_plot
from schemas.rollouts import FIDELITIES

CAPTION = "Logged calls by fidelity, whole snapshot"


def fidelity_figure(metrics: Mapping[str, Any]) -> Markup:
    """A column for each fidelity, the best first, none left out; empty markup where there are no calls.

    Args:
        metrics: of an ingest artifact's manifest.
    """
    counts: Mapping[str, int] = metrics.get("fidelity") or {}
    columns = [(name, float(counts.get(name, 0))) for name in FIDELITIES]
    return column_plot(CAPTION, columns, "fidelity") if any(counts.values()) else Markup("")
