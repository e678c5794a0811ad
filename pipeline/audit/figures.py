"""Figures of manifests, from the rows that they are of: scores, rollouts, log-probabilities, steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from pipeline.audit.check import Check, Run, each
from pipeline.audit.tables import read, values_differ
from pipeline.manifests import MANIFEST
from schemas.examples import EXAMPLES
from schemas.groups import GROUPS
from schemas.parquet import read_rows
from schemas.rollouts import INVOCATIONS, ROLLOUTS
from schemas.scores import SCORES
from schemas.training import LOGPROBS, STEPS
from stages.contract import Artifact
from stages.programs.figures import call_figures, first_error, part_means, status_counts
from stages.statistics.means import example_means
from stages.training.files import invocation_files

_CALL = ("rollout_id", "call_index")


def _told(artifact: Artifact, figures: dict[str, Any]) -> Iterator[str]:
    differing = values_differ(artifact.manifest.metrics, figures)
    yield from (f"{artifact.path / MANIFEST}: {line}" for line in differing)


def _calls(calls: pl.DataFrame, runs: int) -> dict[str, Any]:
    figures = call_figures(calls, runs, None)
    del figures["modules_never_called"]  # what the program declares decides it
    return figures


def scores(run: Run) -> Check:
    """Means, counts and parts of scores from their rows; and that these are of the split's examples, each as often."""

    def look(artifact: Artifact) -> Iterator[str]:
        path, payload = artifact.file("scores.parquet"), artifact.manifest.payload
        section, policy = payload["recipe"]["evaluate"], payload["params"]["policy"]
        rows = read(path, SCORES)
        calls = read(artifact.file("invocations.parquet"), INVOCATIONS)
        means = example_means(rows["example_id"].to_list(), rows["score"].to_list(), section["failure_score"])
        statuses = status_counts(rows)
        yield from _told(
            artifact,
            {
                "mean": sum(means.values()) / len(means),
                "n": len(means),
                "runs": rows.height,
                "statuses": statuses,
                "failures": {status: count for status, count in statuses.items() if status != "ok"},
                "first_error": first_error(rows),
                "parts": part_means(rows["parts"]),
                **_calls(calls, rows.height),
            },
        )
        if lost := calls.join(rows, on="rollout_id", how="anti").height:
            yield f"{artifact.file('invocations.parquet')}: {lost} calls are of no run"
        if others := rows.filter(pl.col("policy") != policy).height:
            yield f"{path}: {others} rows are of another policy than {policy[:12]}"
        examples = run.graph.inputs(artifact).get("examples")
        if examples is None:
            return
        split = read(examples.file("examples.parquet"), EXAMPLES, ["example_id", "split"])
        wanted = split.filter(pl.col("split") == payload["params"]["split"])["example_id"].to_list()
        expected = dict.fromkeys(wanted[: section["limit"]], section["samples"])
        found = dict(rows.group_by("example_id").len().iter_rows())
        if found != expected:
            wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
            was, now = found.get(wrong[0], 0), expected.get(wrong[0], 0)
            yield f"{path}: {len(wrong)} examples have another number of rows, as {wrong[0]}: {was}, expected {now}"

    return each(run, Check("scores are the means of their rows"), ("evaluate",), look)


def rollouts(run: Run) -> Check:
    """Counts and mean rewards of rollouts from their rows; and that all are of the iteration and policy of the key."""

    def look(artifact: Artifact) -> Iterator[str]:
        params = artifact.manifest.payload["params"]
        rows = read(artifact.file("rollouts.parquet"), ROLLOUTS)
        calls = read(artifact.file("invocations.parquet"), INVOCATIONS)
        rewards = rows.filter(pl.col("status") == "ok")["reward"]
        figures = _calls(calls, rows.height) | {
            "examples": rows["example_id"].n_unique(),
            "rollouts": rows.height,
            "statuses": status_counts(rows),
            "first_error": first_error(rows),
            "mean_reward": None if rewards.is_empty() else rewards.mean(),
        }
        yield from _told(artifact, figures)
        for name in ("iteration", "policy"):
            if others := rows.filter(pl.col(name).ne_missing(params[name])).height:
                yield f"{artifact.file('rollouts.parquet')}: {others} rows have another {name} than {params[name]}"
        if lost := calls.join(rows, on="rollout_id", how="anti").height:
            yield f"{artifact.file('invocations.parquet')}: {lost} calls are of no rollout"

    return each(run, Check("figures of rollouts are those of their rows"), ("rollout", "teacher"), look)


def logprobs(run: Run) -> Check:
    """Log-probabilities are of calls that stand in the groups, one a token, by the policy of the key."""

    def look(artifact: Artifact) -> Iterator[str]:
        path, job = artifact.file("logprobs.parquet"), run.job(artifact)
        rows = read(path, LOGPROBS).with_columns(pl.col("logprobs").list.len())
        yield from _told(artifact, {"rows": rows.height, "completion_tokens": int(rows["logprobs"].sum() or 0)})
        policy = job.inputs.params["policy"]
        if others := rows.filter(pl.col("policy") != policy).height:
            yield f"{path}: {others} rows are of another policy than {policy[:12]}"
        members = read(job.inputs["group"].file("groups.parquet"), GROUPS, _CALL).unique()
        files, wanted = invocation_files(job.inputs), [*_CALL, "completion_ids"]
        calls = pl.concat([read(file, INVOCATIONS, wanted) for file in files])
        tokens = calls.join(members, on=_CALL, how="semi").with_columns(pl.col("completion_ids").list.len())
        if alone := rows.join(tokens, on=_CALL, how="anti").height:
            yield f"{path}: {alone} rows are of calls that stand in no group"
        both = rows.join(tokens, on=_CALL)
        if uneven := both.filter(pl.col("logprobs") != pl.col("completion_ids")).height:
            yield f"{path}: {uneven} rows have another number of tokens than their calls"

    return each(run, Check("log-probabilities are of the groups' calls"), ("logprobs",), look)


def steps(run: Run) -> Check:
    """What train manifests say of their steps, from the table of steps."""

    def look(artifact: Artifact) -> Iterator[str]:
        from stages.training.turns import summarised

        if not artifact.manifest.metrics["trained"]:
            return
        rows = read_rows(artifact.file("steps.parquet"), STEPS)
        yield from _told(artifact, summarised(rows))
        for name, told in artifact.manifest.metrics["adapters"].items():
            own = summarised([row for row in rows if row["adapter"] == name])
            yield from (f"{artifact.path / MANIFEST}: adapter '{name}': {line}" for line in values_differ(told, own))

    return each(run, Check("figures of training are those of its steps"), ("train",), look)
