"""Figures of drift, over all of the student's calls and by module, and which of them are an alarm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from schemas.recipe_drift import DriftSection

TOP = 3
"""How many of a module's most frequent completions count together."""
ENOUGH = 20
"""Calls that a module must have had, of the base too where it is compared, before its own figures are an alarm."""

Figures = dict[str, Any]


def figures(calls: pl.DataFrame, scored: pl.DataFrame) -> Figures:
    """Figures over all calls and, as `by_module`, over those of each module.

    Args:
        calls: of the student, as `student_calls` gives them.
        scored: rows of the drift table.
    """
    modules = sorted(calls["module"].unique())
    by_module = {name: _figures(calls.filter(module=name), scored.filter(module=name)) for name in modules}
    return {**_figures(calls, scored), "by_module": by_module}


def _figures(calls: pl.DataFrame, scored: pl.DataFrame) -> Figures:
    """Means are over tokens for `kl_to_base` and `entropy`, over calls for all others; None where there are none."""
    answered = calls.filter(pl.col("completion").is_not_null())
    to_parse = calls.filter(pl.col("parse_status") != "none")
    return {
        "calls": calls.height,
        "scored": scored.height,
        "kl_to_base": _per_token(scored, "kl_to_base"),
        "entropy": _per_token(scored, "entropy"),
        "completion_tokens": _mean(answered["completion_ids"].list.len()),
        "length_cut_share": _mean(answered["finish_reason"] == "length"),
        "parse_failure_share": _mean(to_parse["parse_status"] == "failed"),
        "top_completion_share": _top_share(answered),
    }


def _top_share(answered: pl.DataFrame) -> float | None:
    """Share of calls whose completion is one of its module's most frequent ones."""
    if answered.is_empty():
        return None
    counts = answered.group_by("module", "completion").len()
    top = counts.group_by("module").agg(pl.col("len").sort(descending=True).head(TOP).sum())
    return float(top["len"].sum()) / answered.height


def _per_token(scored: pl.DataFrame, name: str) -> float | None:
    tokens = int(scored["tokens"].sum() or 0)
    return float((scored[name] * scored["tokens"]).sum()) / tokens if tokens else None


def _mean(values: pl.Series) -> float | None:
    mean = values.mean()
    return mean if isinstance(mean, float) else None


def with_gain(own: Figures, base: Figures) -> Figures:
    """Figures with how much more often than the base's completions are among the most frequent ones of their module.

    A classifier has few answers, whoever gives them: it is the difference that tells of a collapse.
    """
    bases = base.get("by_module", {})
    inner = {name: with_gain(found, bases.get(name, {})) for name, found in own.get("by_module", {}).items()}
    shares = own["top_completion_share"], base.get("top_completion_share")
    gain = None if None in shares else shares[0] - shares[1]
    return {**own, "top_completion_share_gain": gain, **({"by_module": inner} if "by_module" in own else {})}


_WORDS = {
    "max_kl": ("kl_to_base", "KL to the base", "{:.3g} nats per token"),
    "min_entropy": ("entropy", "entropy", "{:.3g} nats per token"),
    "max_length_cut_share": ("length_cut_share", "share of completions cut by the length limit", "{:.3g}"),
    "max_parse_failure_share": ("parse_failure_share", "share of completions that do not parse", "{:.3g}"),
    "max_top_completion_share_gain": (
        "top_completion_share_gain",
        f"share of the {TOP} most frequent completions, beyond the base's,",
        "{:.3g}",
    ),
}


def alarms(found: Mapping[str, Any], limits: DriftSection) -> list[str]:
    """What of the metrics of a drift stage is beyond the recipe's limits, in words; sorted by limit, then module."""
    texts: list[str] = []
    for limit in _WORDS:
        texts += _beyond(found, limits, limit, "")
        for module, own in found["by_module"].items():
            base = found["base"]["by_module"].get(module, {"calls": 0})
            compared = min(own["calls"], base["calls"]) if limit == "max_top_completion_share_gain" else own["calls"]
            if compared >= ENOUGH:
                texts += _beyond(own, limits, limit, f"module '{module}': ")
    return texts + list(_of_canaries(found["canaries"], limits))


def _beyond(found: Mapping[str, Any], limits: DriftSection, limit: str, where: str) -> Iterator[str]:
    bound, (name, words, form) = getattr(limits, limit), _WORDS[limit]
    if bound is None:
        return
    if found[name] is None:
        if name in ("kl_to_base", "entropy") and not where:
            yield f"{words} is not known, since no completion could be scored: drift.{limit} ({bound:g}) is not checked"
        return
    over = limit.startswith("max")
    if found[name] > bound if over else found[name] < bound:
        value = form.format(found[name])
        yield f"{where}{words} is {value}, {'above' if over else 'below'} drift.{limit} ({bound:g})"


def _of_canaries(found: Mapping[str, Any] | None, limits: DriftSection) -> Iterator[str]:
    if found is None:
        return
    same, kl = found["same_share"], found["mean_kl"]
    least, most = limits.min_canary_same_share, limits.max_canary_kl
    if least is not None and same is None:
        yield f"no canary could be compared with the base's: drift.min_canary_same_share ({least:g}) is not checked"
    if most is not None and kl is None:
        yield f"no canary's completion could be scored: drift.max_canary_kl ({most:g}) is not checked"
    if least is not None and same is not None and same < least:
        yield f"share of canaries completed as by the base is {same:.3g}, below drift.min_canary_same_share ({least:g})"
    if most is not None and kl is not None and kl > most:
        yield f"KL to the base on canaries is {kl:.3g} nats per token, above drift.max_canary_kl ({most:g})"
