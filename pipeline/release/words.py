"""Decisions in words."""

from __future__ import annotations

from schemas.decisions import Decision, Evidence, Guarded
from stages.statistics import Difference

_VERBS = {"gate": "gate", "release": "by hand", "rollback": "rollback"}


def reason_of(evidence: Evidence, against: str, rule: str) -> str:
    """Why the gate lets a candidate through, or not.

    Args:
        evidence: what it saw.
        against: what was released then, as a person calls it.
        rule: the recipe's.
    """
    told = [difference_of(evidence, against), *(_guard(guard) for guard in evidence.guards), *evidence.alarms]
    if rule != "improves":
        told.append(f"gate.rule is '{rule}'")
    return "; ".join(told)


def difference_of(evidence: Evidence, against: str) -> str:
    """The estimate and its bound at the level of the look."""
    if evidence.alpha_k <= 0:
        return f"{evidence.estimate:+.3f} on {against}; alpha is spent (look {evidence.k}), so nothing can be shown"
    side = "above 0" if evidence.improved else "not above 0"
    return (
        f"{evidence.estimate:+.3f} on {against}, lower bound {evidence.lower:+.3f}: {side} "
        f"(look {evidence.k}, alpha_k {evidence.alpha_k:.2g}, p {evidence.p:.2g}, {evidence.n} examples)"
    )


def line_of(decision: Decision) -> str:
    """A decision on one line."""
    forced = ", forced" if decision.forced else ""
    return f"{_VERBS[decision.kind]}{forced}: {decision.verdict} {name_of(decision)} — {decision.reason}"


def name_of(decision: Decision) -> str:
    """What a person calls the policy that a decision is about."""
    if decision.adapter is None:
        return "the base"
    after = f" (after iteration {decision.position - 1})" if decision.position else ""
    return f"policy {decision.policy[:12]}{after}"


def comparison_of(found: Difference, against: str) -> str:
    """A difference of two policies with its interval and its p-values."""
    ends = "" if found.low is None or found.high is None else f" [{found.low:+.3f}, {found.high:+.3f}]"
    tests = {"sign flips": found.sign_flip_p, "McNemar": found.mcnemar_p}
    told = ", ".join(f"{name} p {p:.2g}" for name, p in tests.items() if p is not None)
    return f"{found.estimate:+.3f}{ends} on {against}{f' ({told})' if told else ''}"


def _guard(guard: Guarded) -> str:
    if guard.estimate is None or guard.lower is None:
        return f"guard '{guard.part}': no run has this part of the metric"
    state = "held" if guard.held else "not held"
    missing = f", {guard.missing} runs without it" if guard.missing else ""
    return (
        f"guard '{guard.part}' {state}: {guard.estimate:+.3f}, lower bound {guard.lower:+.3f}, may lose "
        f"{guard.margin:g}{missing}"
    )
