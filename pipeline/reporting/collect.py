"""From a run folder to a `Report`: everything that the page and report.json say is gathered here."""

from __future__ import annotations

from pathlib import Path

from pipeline.reporting import findings
from pipeline.reporting.ages import collect_ages, collect_modules
from pipeline.reporting.costs import collect_artifacts, collect_costs, collect_exclusions, total_seconds
from pipeline.reporting.data import Report
from pipeline.reporting.engines import collect_sampled, engine_gaps
from pipeline.reporting.failures import collect_failures
from pipeline.reporting.iterations import collect_iterations, collect_module_rewards
from pipeline.reporting.opened import open_run
from pipeline.reporting.prompts import collect_prompts
from pipeline.reporting.samples import collect_samples
from pipeline.reporting.scores import collect_scores
from pipeline.reporting.sources import collect_sources
from pipeline.reporting.training import collect_steps, step_means

FORMAT = 1


def collect(run_dir: Path) -> Report:
    """Gather the report of a run, finished or not.

    Raises:
        DataError: naming the file, when run.json, a manifest or a table is damaged.
    """
    run = open_run(run_dir)
    dev = collect_scores(run, run.recipe.examples.dev)
    test_split = run.recipe.examples.test
    test = collect_scores(run, test_split) if test_split in run.state.evaluations and test_split else None
    iterations = collect_iterations(run)
    steps = collect_steps(run)
    costs = collect_costs(run)
    return Report(
        format=FORMAT,
        name=run.state.name,
        run_digest=run.state.digest,
        recipe=run.state.recipe,
        verdict=findings.verdict(dev),
        notes=findings.notes(run, iterations, steps, [dev, test] if test else [dev]),
        dev=dev,
        test=test,
        tests_opened=run.state.tests_opened,
        seconds=total_seconds(costs),
        costs=costs,
        prompts=collect_prompts(run),
        iterations=iterations,
        sources=collect_sources(run),
        module_rewards=collect_module_rewards(run),
        exclusions=collect_exclusions(run),
        failures=collect_failures(run),
        steps=steps,
        step_means=step_means(steps),
        ages=collect_ages(run),
        module_training=collect_modules(run),
        sampled=collect_sampled(run),
        engine_gaps=engine_gaps(steps),
        samples=collect_samples(run),
        artifacts=collect_artifacts(run),
    )
