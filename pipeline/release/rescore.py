"""Scores of the released policy on examples, by a program, or with sampling, that it was not scored with yet."""

from __future__ import annotations

from dataclasses import replace

from pipeline.jobs import Job
from pipeline.manifests import read_stored
from pipeline.release.standing import Standing
from pipeline.run import Runner
from pipeline.store import Store
from pipeline.tombstones import tombstone_of
from stages.contract import Artifact


def rescored(runner: Runner, job: Job, now: Standing) -> Artifact | str:
    """The artifact of the released policy's scores, made as the evaluation at hand was; or why there can be none.

    It is no part of what run.json chose: the policy may be of an earlier recipe of the run.
    """
    artifacts = {role: artifact for role, artifact in job.artifacts.items() if role not in {"adapter", "prompts"}}
    identities: dict[str, str] = {}
    if now.adapter is not None:
        trained = runner.store.find("train", now.adapter)
        if trained is None or tombstone_of(trained.path) is not None:
            return f"the adapter of {now.name}, which is released, is not in the run any more"
        base = artifacts["base"]
        if base is None or trained.manifest.payload["inputs"].get("base") != base.digest:
            return f"{now.name}, which is released, was trained on another base"
        artifacts["adapter"], identities = trained, {"adapter": now.policy}
    elif base_policy(job) != now.policy:
        return "what is released is another base"
    prompts = job.artifacts.get("prompts")
    wanted = now.decision.prompts if now.decision is not None else (prompts.digest if prompts else None)
    if wanted is not None:
        found = prompts if prompts is not None and prompts.digest == wanted else by_digest(runner.store, wanted)
        if found is None:
            return f"the prompts of {now.name}, which is released, are not in the run any more"
        artifacts["prompts"] = found
    return runner.made_or_found(
        replace(
            job,
            slot=(*job.slot[:2], "released"),
            params={**job.params, "policy": now.policy},
            artifacts=artifacts,
            identities=identities,
        )
    )


def base_policy(job: Job) -> str | None:
    """The policy of the base that an evaluation ran on."""
    base = job.artifacts.get("base")
    return None if base is None else str(base.manifest.metrics["policy"])


def by_digest(store: Store, digest: str) -> Artifact | None:
    """Optimized prompts by their artifact's digest."""
    for stage, path in store.all():
        if stage == "prompts" and (manifest := read_stored(path)).digest == digest:
            return Artifact(path, manifest)
    return None
