"""How a policy was scored. A difference of scores that were made in two ways is not one of their policies."""

from __future__ import annotations

from pipeline.jobs import Job
from pipeline.runfile import RunFile
from pipeline.store import Store
from schemas.canonical import digest
from stages.contract import Artifact

_OF_A_POLICY = {"params": ("policy",), "inputs": ("adapter", "prompts")}
"""What of an evaluation's key two policies may differ in and still be compared."""


def way_of(artifact: Artifact) -> str:
    """Digest of what an evaluate artifact's key says beside the policy and its prompts."""
    payload = artifact.manifest.payload
    kept = {
        part: {name: value for name, value in payload.get(part, {}).items() if name not in own}
        for part, own in _OF_A_POLICY.items()
    }
    return digest([payload.get("stage_version"), payload.get("recipe"), kept])


def only_alike(state: RunFile, job: Job, artifact: Artifact, store: Store) -> RunFile:
    """The state without scores that were made in another way than those of a job that has just been done.

    They stay in the store, and come back when their policies are scored that way again.

    Args:
        state: with the job's key in it.
        job: an evaluation; the state stays as it is behind any other job.
        artifact: what the job made.
        store: where the other scores are.
    """
    if job.slot[0] != "evaluations":
        return state
    split, way = job.slot[1], way_of(artifact)
    kept = {
        policy: key
        for policy, key in state.evaluations[split].items()
        if (found := store.find("evaluate", key)) is not None and way_of(found) == way
    }
    return state.model_copy(update={"evaluations": {**state.evaluations, split: kept}})
