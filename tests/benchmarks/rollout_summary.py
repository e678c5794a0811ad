"""What the sampling benchmark found, as ratios beside what is wanted of them, and as a table for people."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Figures = Mapping[str, Any]
Found = Mapping[str, Mapping[str, Figures]]
"""Figures by workload and contestant."""

SHARED = "banking77"
"""The workload of a long prompt that all calls share."""
TITLES = {"banking77": "Banking77", "papillon": "PAPILLON", "multihop": "multi-hop"}
NAMES = {
    "plain": "`dspy.Evaluate`, a call at a time",
    "generate": "plain `generate`, 64 rows a batch",
    "ours": "**ours, embedded**",
    "window": "the embedded engine alone, as many at a time",
    "ceiling": "the embedded engine alone, all at once",
    "vllm": "**ours, vLLM**",
    "vllm_window": "vLLM alone, as many at a time",
    "vllm_ceiling": "vLLM alone, all at once",
}
"""What tables call contestants, in their order."""
CEILINGS = {"ours": "ceiling", "vllm": "vllm_ceiling"}
NOTHING = "\N{EN DASH}"
NO_FIGURES = "No figures yet: `make bench-rollout` makes them."


def rate(figures: Mapping[str, Figures], who: str) -> float | None:
    """Generated tokens a second of a contestant; None where it did not run or failed."""
    value = figures.get(who, {}).get("generated_per_second")
    return None if value is None else float(value)


def ratio(figures: Mapping[str, Figures], who: str, to: str) -> float | None:
    """How many times as fast one contestant is as another; None where one of them is not there."""
    upper, lower = rate(figures, who), rate(figures, to)
    return None if upper is None or not lower else upper / lower


def cpu_rate(figures: Figures) -> float:
    """Generated tokens for each second of a core: what a busy machine changes least."""
    return float(figures["generated_per_second"] * figures["seconds"] / figures["cpu_seconds"])


def cpu_ratio(figures: Mapping[str, Figures], who: str, to: str) -> float | None:
    """As `ratio`, of tokens by CPU seconds."""
    if rate(figures, who) is None or not rate(figures, to):
        return None
    return cpu_rate(figures[who]) / cpu_rate(figures[to])


def of_best_ceiling(figures: Mapping[str, Figures], who: str) -> float | None:
    """A contestant's speed as a share of the faster engine's ceiling."""
    ceilings = [found for found in (rate(figures, name) for name in CEILINGS.values()) if found]
    mine = rate(figures, who)
    return mine / max(ceilings) if mine is not None and ceilings else None


def summary(found: Found) -> dict[str, Any]:
    """The figures, and each wanted ratio with what it is."""
    wanted: dict[str, Any] = {}

    def want(workload: str, title: str, who: str, to: str, least: float) -> None:
        value, by_cpu = ratio(found[workload], who, to), cpu_ratio(found[workload], who, to)
        met = None if value is None else value >= least
        wanted[f"{workload}: {title}"] = {"wanted": least, "found": value, "met": met, "by_cpu_seconds": by_cpu}

    for workload in found:
        want(workload, "ours of the engine's ceiling", "ours", "ceiling", 0.9)
        want(workload, "ours on vLLM of vLLM's ceiling", "vllm", "vllm_ceiling", 0.9)
    if SHARED in found:
        want(SHARED, "ours to one call at a time", "ours", "plain", 5.0)
        want(SHARED, "ours to plain generate", "ours", "generate", 3.0)
        want(SHARED, "ours to ours on vLLM", "ours", "vllm", 0.9)
    best = {workload: {who: of_best_ceiling(figures, who) for who in CEILINGS} for workload, figures in found.items()}
    return {"wanted": wanted, "of_best_ceiling": best, "workloads": found}


def joined(kept: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """A new result beside what an older one has of other workloads, and of other contestants on the same counts."""
    counts, workloads = kept["counts"] | new["counts"], dict(kept["workloads"])
    for name, figures in new["workloads"].items():
        same = kept["counts"].get(name) == new["counts"][name]
        workloads[name] = (workloads[name] if same else {}) | figures
    order = [name for name in TITLES if name in workloads]
    return {
        **new,
        "packages": kept["packages"] | new["packages"],
        "counts": {name: counts[name] for name in order},
        "workloads": {name: workloads[name] for name in order},
    }


def _share(found: Mapping[str, Figures], who: str, of: Callable[..., float | None] = ratio) -> str:
    to = "vllm_ceiling" if who.startswith("vllm") else "ceiling"
    return _optional(of(found, who, to), ".0%")


def _optional(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form).replace("%", " %")


def _minutely(value: float | None) -> str:
    return _optional(value, ",.0f" if value is None or value >= 10 else ".1f")


_COLUMNS: dict[str, Callable[[Mapping[str, Figures], str], str]] = {
    "s": lambda found, who: f"{found[who]['seconds']:.1f}",
    "CPU s": lambda found, who: f"{found[who]['cpu_seconds']:.1f}",
    "generated tokens/s": lambda found, who: f"{found[who]['generated_per_second']:,.0f}",
    "generated tokens/CPU s": lambda found, who: f"{cpu_rate(found[who]):,.1f}",
    "prefilled tokens/s": lambda found, who: f"{found[who]['prefilled_per_second']:,.0f}",
    "rollouts a minute": lambda found, who: _minutely(found[who].get("rollouts_per_minute")),
    "of its engine's ceiling": _share,
    "by CPU s": lambda found, who: _share(found, who, cpu_ratio),
    "of the better ceiling": lambda found, who: _optional(of_best_ceiling(found, who), ".0%"),
    "ms a call outside the engine": lambda found, who: _optional(found[who].get("outside_ms_per_call"), ".1f"),
    "peak MiB": lambda found, who: f"{found[who]['peak_mib']:,.0f}",
}


def table(found: Found) -> str:
    """The figures as a Markdown table; a contestant that failed says so."""
    rows = [["", "", *_COLUMNS], ["---"] * (len(_COLUMNS) + 2)]
    for workload, figures in found.items():
        title = TITLES[workload]
        for who in [name for name in NAMES if name in figures]:
            cells = ["failed"] + [NOTHING] * (len(_COLUMNS) - 1)
            if "failed" not in figures[who]:
                cells = [column(figures, who) for column in _COLUMNS.values()]
            rows.append([title, NAMES[who], *cells])
            title = ""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def in_readme(readme: str, name: str, result: Mapping[str, Any] | None) -> str:
    """The README with the table of a result file in its place, or with a note where there is no result yet."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    place = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    assert len(place.findall(readme)) == 1, f"expected one place between {begin.strip()} and {end}"
    text = NO_FIGURES if result is None else f"{_about(result)}\n\n{table(result['workloads'])}"
    return place.sub(lambda _: f"{begin}{text}\n{end}", readme)


def _about(result: Mapping[str, Any]) -> str:
    """What the figures were read on."""
    names = {found["engine"] for each in result["workloads"].values() for found in each.values() if "engine" in found}
    return (
        f"{_counts(result['counts'])} On {result['device']}, {result['threads']} threads. "
        f"Engines: {', '.join(sorted(names))}."
    )


def _counts(counts: Mapping[str, Mapping[str, int]]) -> str:
    """How many rollouts were made, a sentence for all workloads of the same counts."""
    titles: dict[str, list[str]] = {}
    for name, made in counts.items():
        fewer = made["plain_rollouts"]
        part = "" if fewer == made["rollouts"] else f"; the plain ways made {fewer} of them"
        sentence = f"{made['rollouts']} rollouts, {made['concurrency']} in flight{part}"
        titles.setdefault(sentence, []).append(TITLES[name])
    return " ".join(f"{', '.join(names)}: {sentence}." for sentence, names in titles.items())


def main(result: Path, readme: Path) -> None:
    """Write a result's table into a README."""
    found = json.loads(result.read_text()) if result.is_file() else None
    readme.write_text(in_readme(readme.read_text(), result.name, found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
