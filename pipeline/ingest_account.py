"""What is told of a snapshot: how much it holds, how far that can be trusted, what was left out, and what mends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.contract import Artifact
from stages.ingest.modules import AMBIGUOUS, NO_MODULE
from stages.ingest.rewards import CONTRADICTING, SEVERAL_SCORES

_COUNTS = {
    "modules": "calls by module",
    "fidelity": "calls by fidelity",
    "fidelity_reasons": "why they are not exact",
    "scores": "rollouts by score",
    "no_reward": "rollouts without a reward",
    "redacted": "values taken out",
    "left_out_traces": "traces left out",
    "left_out_calls": "calls left out",
}
_SHOWN = 3


def account_of(artifact: Artifact) -> str:
    """What a snapshot holds, in a few lines."""
    figures = artifact.manifest.metrics
    lines = [
        f"{figures['traces']} traces: {figures['rollouts']} rollouts of {figures['examples']} examples, "
        f"{figures['examples_with_siblings']} of them with two or more; {figures['invocations']} calls"
    ]
    if "onto" in figures:
        told = ", ".join(f"{figures['onto'].get(name, 0)} {name}" for name in ("added", "replaced", "same"))
        lines.append(f"onto its parent {artifact.manifest.payload['params']['parent'][:12]}: {told}")
    for name, what in _COUNTS.items():
        if counts := figures.get(name):
            lines.append(f"{what}: " + ", ".join(f"{key} {count}" for key, count in counts.items()))
    return "\n".join([*lines, *_hints(figures, artifact.manifest.payload)])


def _hints(figures: Mapping[str, Any], payload: Mapping[str, Any]) -> Iterator[str]:
    """What to type where the recipe leaves something open that the logs hold."""
    known, wanted = list(figures.get("scores", ())), payload["recipe"]["ingest"]["reward"]
    if SEVERAL_SCORES in figures["no_reward"]:
        shown = ", ".join(f"{name} = 1.0" for name in known[:_SHOWN])
        yield f'which score is the reward? [ingest] reward = "NAME", or several by weight, as {{ {shown} }}'
    if CONTRADICTING in figures["no_reward"]:
        yield 'several values of one score of a trace: [ingest] repeated = "mean" takes their mean'
    named = [wanted] if isinstance(wanted, str) else list(wanted or ())
    missing = [name for name in named if name not in known]
    if missing and "scores" in figures and "rescored" not in payload["params"]:
        told = ", ".join(known) or "none at all"
        yield f"[ingest] reward names {', '.join(missing)}, which no rollout has as a score; they have {told}"
    if shorter := figures.get("onto", {}).get("shorter"):
        yield (
            f"{shorter} traces have fewer spans than in the parent, whose record they stand for: where they are the "
            "rest of traces that were cut over two exports, ingest both exports together"
        )
    if unknown := sum(figures["left_out_calls"].get(name, 0) for name in (NO_MODULE, AMBIGUOUS)):
        yield f"{unknown} calls are of no one module: the same command with --suggest-modules proposes rules"
