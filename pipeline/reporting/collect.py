"""From a run folder to a `Report`: everything that the page and report.json say is gathered here."""

from __future__ import annotations

from pathlib import Path

from pipeline.costs import ledger_of
from pipeline.reporting import answers, findings
from pipeline.reporting.advice import advise
from pipeline.reporting.ages import collect_ages, collect_modules
from pipeline.reporting.chain import collect_chain
from pipeline.reporting.compared import compare
from pipeline.reporting.costs import collect_artifacts, collect_costs, collect_exclusions, total_seconds
from pipeline.reporting.data import Report
from pipeline.reporting.drift import collect_drift
from pipeline.reporting.engines import collect_sampled, engine_gaps
from pipeline.reporting.facts import facts_of
from pipeline.reporting.failures import collect_failures
from pipeline.reporting.flips import collect_flips
from pipeline.reporting.gate import collect_gate
from pipeline.reporting.iterations import collect_iterations, collect_module_rewards
from pipeline.reporting.logged import collect_logged
from pipeline.reporting.opened import open_run
from pipeline.reporting.prompts import collect_prompts
from pipeline.reporting.records import about_records
from pipeline.reporting.scores import collect_scores
from pipeline.reporting.sources import collect_sources
from pipeline.reporting.training import collect_steps, step_means

FORMAT = 2


def collect(run_dir: Path, running: str | None = None) -> Report:
    """Gather the report of a run, finished or not.

    Args:
        run_dir: its folder.
        running: what is at work on it now, in words, where the caller is.

    Raises:
        DataError: naming the file, when run.json, a manifest or a table is damaged.
    """
    run = open_run(run_dir)
    dev = collect_scores(run, run.recipe.examples.dev)
    test_split = run.recipe.examples.test
    test = collect_scores(run, test_split) if test_split in run.state.evaluations and test_split else None
    iterations = collect_iterations(run)
    steps = collect_steps(run)
    costs, ledger = collect_costs(run), ledger_of(run)
    means = step_means(steps)
    failures = collect_failures(run)
    chain = collect_chain(run)
    verdict = findings.verdict(dev)
    gate = collect_gate(run)
    drift = collect_drift(run, run.recipe.examples.dev)
    alarms = drift.newest_alarms if drift else ()
    advice = advise(
        facts_of(run, iterations, dev, step_means=means, chain=chain, gate=gate, alarms=alarms, running=running)
    )
    return Report(
        format=FORMAT,
        name=run.state.name,
        run_digest=run.state.digest,
        recipe=run.state.recipe,
        running=running,
        answers=(
            answers.better(verdict, dev),
            answers.real(dev, test, run.state.tests_opened, gate),
            answers.cost(ledger),
            answers.data(run, iterations, chain),
            answers.failures(iterations, failures),
            answers.following(advice),
        ),
        advice=advice,
        verdict=verdict,
        notes=(
            *(about_records(run.folder) if running is None else ()),
            *findings.notes(run, iterations, steps, [dev, test] if test else [dev]),
        ),
        dev=dev,
        test=test,
        tests_opened=run.state.tests_opened,
        seconds=total_seconds(costs),
        costs=costs,
        compared=compare(run, iterations, dev, means, gate=gate, ledger=ledger),
        gate=gate,
        drift=drift,
        flips=collect_flips(run, run.recipe.examples.dev),
        ledger=ledger,
        prompts=collect_prompts(run),
        iterations=iterations,
        sources=collect_sources(run),
        logged=collect_logged(run),
        module_rewards=collect_module_rewards(run),
        exclusions=collect_exclusions(run),
        failures=failures,
        steps=steps,
        step_means=means,
        ages=collect_ages(run),
        module_training=collect_modules(run),
        sampled=collect_sampled(run),
        engine_gaps=engine_gaps(steps),
        artifacts=collect_artifacts(run),
        chain=chain,
    )
