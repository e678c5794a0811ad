"""Render a `Report` as one HTML page: its plots are drawn here, its words and tables stand in the template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise

from jinja2 import Environment
from markupsafe import Markup

from pipeline import cost_forms
from pipeline.ingest_plot import CAPTION, fidelity_figure
from pipeline.reporting import findings, text
from pipeline.reporting.chain_picture import draw_chain
from pipeline.reporting.costs import told_of
from pipeline.reporting.data import Iteration, ModuleReward, Report, SplitScores
from pipeline.reporting.data_drift import Drift
from pipeline.reporting.data_engines import EngineGap
from pipeline.reporting.data_training import Step
from pipeline.reporting.environment import open_templates
from pipeline.reporting.plots import Series, column_plot, line_plot
from pipeline.reporting.scripts import inline, own_script
from schemas.training import RATIO_EDGES
from schemas.visible import plain
from stages.grouping.reasons import REASONS
from stages.training.names import LEFT_OUT

INDICES_DRAWN = 6
"""Calls of one module, or adapters, that are drawn as lines of their own; the table has all of them."""

STEP_PLOTS = {
    "loss": ("Loss", "Loss"),
    "kl_old": ("KL to the policy at the start of the stage, nats per token", "KL to old"),
    "kl_ref": ("KL to the reference, nats per token", "KL to reference"),
    "clip_share": ("Clipped tokens, share", "Clipped"),
    "entropy": ("Entropy, nats per token", "Entropy"),
    "ess": ("Effective sample size against the policies that sampled the data, share", "ESS"),
    "mismatch_ess": (
        "Effective sample size of the engine's log-probabilities against the trainer's, share",
        "Engine ESS",
    ),
    "mismatch_mean": ("Engine's against the trainer's log-probability, mean difference, nats", "Engine mismatch"),
    "grad_norm": ("Gradient norm", "Gradient norm"),
}
"""Figures of the trainer that are shown: caption of the plot, heading of the column."""
COST_COLUMNS = ("seconds", "prompt_tokens", "prefilled_tokens", "completion_tokens", "row_tokens", "forward_tokens")

POLICY_AXIS = "policy (0: before training, n: after iteration n-1)"
"""Positions of policies, in the words of the tables."""


@dataclass(frozen=True)
class Figure:
    """A plot with its caption, and the names of its lines when it has several."""

    caption: str
    svg: Markup
    legend: tuple[str, ...] = ()
    narrow: Markup | None = None
    """The same plot for narrow screens, when `svg` is a wide one."""


@dataclass(frozen=True)
class Component:
    """A part of the page that brings its own style and script."""

    markup: Markup
    style: Markup
    script: str


def render(report: Report, rollouts: Component) -> str:
    """The page: self-contained, every value escaped, no script but those that its policy names."""
    template = _environment().get_template("report.html.j2")
    return template.render(
        report=report,
        rollouts=rollouts,
        scripts=inline([own_script(), rollouts.script]),
        chain=draw_chain(report.chain),
        score_plot=_score_plot(report.dev),
        reward_plots=_reward_plots(report.iterations, report.module_rewards),
        group_plots=_group_plots(report.iterations),
        logged_plot=_logged_plot(report),
        step_plots=_step_plots(report.steps),
        several_adapters=len({step.adapter for step in report.steps}) > 1,
        drift_plots=_drift_plots(report.drift),
        engine_plots=_engine_plots(report.engine_gaps),
        steps_taken=len({step.step for step in report.steps}),
        iterations_done=sum(not iteration.missing for iteration in report.iterations),
        cost_columns=_cost_columns(report),
        cost_total=told_of(report.costs),
        cost_notes=cost_forms.notes(report.ledger),
        step_columns={name: head for name, (_, head) in STEP_PLOTS.items() if _any_known(report.steps, name)},
        ratio_bins=_ratio_bins(),
        excluded=_excluded_by_reason(report),
        statuses=_statuses(report.iterations),
    )


@cache
def _environment() -> Environment:
    environment = open_templates()
    shown = (
        text.visible,
        text.clipped,
        text.number,
        text.figure,
        text.signed,
        text.count,
        text.plural,
        text.share,
        text.bounds,
        text.duration,
        plain,
        text.words,
        text.after,
        text.difference,
        cost_forms.money,
    )
    environment.filters |= {function.__name__: function for function in (*shown, findings.when)}
    environment.filters["pretty"] = lambda value: text.visible(json.dumps(value, indent=2, ensure_ascii=False))
    return environment


def _score_plot(scores: SplitScores) -> Figure | None:
    known = [(row.position, row.score) for row in scores.policies]
    points = [(position, score.estimate) for position, score in known]
    band = [(x, score.low, score.high) for x, score in known if score.low is not None and score.high is not None]
    caption = f"{scores.split} score with its 95 % interval"
    series = [Series(f"{scores.split} score", points, band)]
    narrow = _figure(caption, series, POLICY_AXIS)
    if narrow is None:
        return None
    wide = line_plot(f"{caption}, by {POLICY_AXIS}", series, POLICY_AXIS, width=860, height=300)
    return Figure(caption, wide, narrow=narrow.svg)


def _reward_plots(iterations: Sequence[Iteration], rows: Sequence[ModuleReward]) -> list[Figure]:
    overall = [(iteration.index, iteration.rollouts.mean_reward) for iteration in iterations if iteration.rollouts]
    known = [mean for mean in (*(mean for _, mean in overall), *(row.mean_reward for row in rows)) if mean is not None]
    cover = (min(known), max(known)) if known else ()
    figures = [_figure("All rollouts", [Series("all rollouts", overall)], "iteration", cover=cover)]
    for module in sorted({row.module for row in rows}):
        own = [row for row in rows if row.module == module]
        indices = sorted({row.invocation_index for row in own})
        series = [
            Series(f"call {index}", [(row.iteration, row.mean_reward) for row in own if row.invocation_index == index])
            for index in indices[:INDICES_DRAWN]
        ]
        more = f" (first {INDICES_DRAWN} of {len(indices)} calls)" if len(indices) > INDICES_DRAWN else ""
        figures.append(_figure(f"{plain(module)}{more}", series, "iteration", cover=cover))
    return [figure for figure in figures if figure]


def _group_plots(iterations: Sequence[Iteration]) -> list[Figure]:
    grouped = [(iteration.index, iteration.groups) for iteration in iterations if iteration.groups]
    sizes: dict[int, int] = {}
    for _, stats in grouped:
        for size, count in stats.sizes.items():
            sizes[size] = sizes.get(size, 0) + count
    columns = [(str(size), float(count)) for size, count in sorted(sizes.items())]
    flat = [(index, stats.flat_share) for index, stats in grouped]
    caption = "Groups by number of members, whole run"
    figures = [
        Figure(caption, column_plot(caption, columns, "members")) if columns else None,
        _figure("Flat groups, share", [Series("flat groups", flat)], "iteration", cover=(0.0,)),
    ]
    return [figure for figure in figures if figure]


def _logged_plot(report: Report) -> Figure | None:
    drawn = fidelity_figure(asdict(report.logged)) if report.logged else None
    return Figure(CAPTION, drawn) if drawn else None


def _step_plots(steps: Sequence[Step]) -> list[Figure]:
    adapters = sorted({step.adapter for step in steps})
    more = f" (first {INDICES_DRAWN} of {len(adapters)} adapters)" if len(adapters) > INDICES_DRAWN else ""
    figures = [
        _figure(
            f"{caption}{more}",
            [
                Series(
                    plain(adapter) if len(adapters) > 1 else caption,
                    [(step.step, step.figures[name]) for step in steps if step.adapter == adapter],
                )
                for adapter in adapters[:INDICES_DRAWN]
            ],
            "optimizer step",
            cover=() if name == "loss" else (0.0,),
        )
        for name, (caption, _) in STEP_PLOTS.items()
    ]
    return [figure for figure in figures if figure]


def _engine_plots(gaps: Sequence[EngineGap]) -> list[Figure]:
    apart = [
        Series("mean", [(gap.iteration, gap.mean) for gap in gaps]),
        Series("99 % of tokens", [(gap.iteration, gap.p99) for gap in gaps]),
    ]
    cut = [Series("rho cut", [(gap.iteration, gap.rho_cut) for gap in gaps])]
    figures = [
        _figure("Engine's against the trainer's log-probability of a token, nats", apart, "iteration", cover=(0.0,)),
        _figure("Tokens whose rho was cut, share", cut, "iteration", cover=(0.0,)),
    ]
    return [figure for figure in figures if figure]


def _drift_plots(drift: Drift | None) -> list[Figure]:
    rows = [row for row in drift.rows if row.module is None] if drift else []
    shares = [
        Series("not parsed", [(row.position, row.parse_failure_share) for row in rows]),
        Series("cut by length", [(row.position, row.length_cut_share) for row in rows]),
        Series("repeated", [(row.position, row.top_completion_share) for row in rows]),
    ]
    drawn = {
        "KL to the base, nats per token": [Series("KL to the base", [(row.position, row.kl_to_base) for row in rows])],
        "Entropy, nats per token": [Series("entropy", [(row.position, row.entropy) for row in rows])],
        "Calls, share": shares,
    }
    figures = [_figure(caption, series, "policy", cover=(0.0,)) for caption, series in drawn.items()]
    return [figure for figure in figures if figure]


def _figure(caption: str, series: Sequence[Series], x_label: str, *, cover: Sequence[float] = ()) -> Figure | None:
    """A line plot, or None when nothing in it can be drawn."""
    names = ", ".join(line.name for line in series) if len(series) > 1 else ""
    svg = line_plot(f"{caption}{': ' if names else ''}{names}, by {x_label}", series, x_label, cover=cover)
    legend = tuple(line.name for line in series) if len(series) > 1 else ()
    return Figure(caption, svg, legend) if svg else None


def _cost_columns(report: Report) -> list[str]:
    """Telemetry names: the ones that every engine has first, then whatever else was recorded."""
    found = set(told_of(report.costs))
    return [name for name in COST_COLUMNS if name in found] + sorted(found - set(COST_COLUMNS))


def _ratio_bins() -> list[str]:
    edges = [f"{edge:g}" for edge in RATIO_EDGES]
    inner = [f"{low} to {high}" for low, high in pairwise(edges)]
    return [f"below {edges[0]}", *inner, f"{edges[-1]} and up"]


def _any_known(steps: Sequence[Step], name: str) -> bool:
    return any(step.figures[name] is not None for step in steps)


def _excluded_by_reason(report: Report) -> list[tuple[str, str, int, str]]:
    """(stage, reason, rows, what the reason means) over the whole run, most first."""
    sums: dict[tuple[str, str], int] = {}
    for row in report.exclusions:
        sums[row.stage, row.reason] = sums.get((row.stage, row.reason), 0) + row.count
    ordered = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    known = {"group": REASONS, "train": LEFT_OUT}
    meanings = {(stage, reason): text_.replace("`", "") for stage in known for reason, text_ in known[stage].items()}
    return [(*name, count, meanings.get(name, "")) for name, count in ordered]


def _statuses(iterations: Sequence[Iteration]) -> list[str]:
    """Statuses of rollouts that occurred: ok first."""
    found = {status for iteration in iterations if iteration.rollouts for status in iteration.rollouts.statuses}
    return sorted(found, key=lambda status: (status != "ok", status))
