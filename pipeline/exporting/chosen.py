"""Which policy of a run is exported, and whether it may be."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline import lineage
from pipeline.lineage import Iteration
from pipeline.manifests import check_files
from pipeline.release.records import released
from pipeline.release.standing import NEWEST
from pipeline.reporting.opened import OpenRun
from pipeline.tainted import refuse_tainted
from schemas.errors import DataError, RecipeError
from schemas.policies import named_adapters, policy_digest
from stages.contract import Artifact
from stages.engines.adapters import BASE, AdapterSet, read_adapters
from stages.engines.digests import recorded_digests
from stages.engines.files import read_json


@dataclass(frozen=True)
class Chosen:
    """A trained policy of a run."""

    policy: str
    position: int
    """Iterations finished before it."""
    train: Artifact
    """What made it, or carried its adapters over."""
    adapters: AdapterSet
    digests: dict[str, str]
    """Digest of the adapter by module, under "*" where all share one."""
    base: dict[str, str]
    """The base artifact's: `base` (the digest of the next three), `weights`, `tokenizer`, `template`."""
    made_of: tuple[Iteration, ...]
    """The iterations that led to it, in order."""


def choose(run: OpenRun, policy: str | None) -> Chosen:
    """A policy by its digest or the beginning of it, or `NEWEST`; None: the one that is released.

    Raises:
        RecipeError: when there is none, none is released, or it is the base model.
        DataError: when it learnt from traces that were to be forgotten, or its files are not what they were.
    """
    wanted = _wanted(run, policy)
    position = run.state.policies.index(wanted)
    made_of = tuple(lineage.iterations(run.folder)[:position])
    train = next((item.train for item in reversed(made_of) if item.after == wanted and _made(item, wanted)), None)
    if train is None:
        raise RecipeError(f"policy {wanted[:12]} of {run.folder} is the base model: there is no adapter to export")
    for digest in (wanted, train.digest):
        refuse_tainted(run.folder, digest, f"the adapter of policy {wanted[:12]}")
    if problems := check_files(train.path, train.manifest):
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise DataError(f"the adapter is damaged:\n{lines}\nRestore it, or delete {train.path} and run again")
    base = recorded_digests(run.store.open("base", run.state.setup["base"]).file("base.json"))
    adapters = read_adapters(train.path)
    return Chosen(wanted, position, train, adapters, _checked(train, wanted, adapters, base["base"]), base, made_of)


def _wanted(run: OpenRun, policy: str | None) -> str:
    if len(set(run.state.policies)) < 2:
        raise RecipeError(
            f"{run.folder}: nothing is trained yet, so there is no adapter. `mmgrpo run RECIPE` trains one"
        )
    if policy == NEWEST:
        return run.state.policies[-1]
    if policy is None:
        decision = released(run.folder)
        if decision is None:
            raise RecipeError(
                f"{run.folder}: no adapter is released; the base is what is. Name one with --policy DIGEST (`mmgrpo "
                f"lineage` lists them; --policy {NEWEST} is {run.state.policies[-1][:12]}), or release one: "
                f"mmgrpo release {run.folder}"
            )
        policy = decision.policy
        if decision.adapter and policy not in run.state.policies:
            held = run.store.folder("train", decision.adapter)
            raise RecipeError(
                f"policy {policy[:12]}, which is released, was made with other settings, data or program than the run "
                f"has now, so that no card can be made of it. Its adapter lies below {held}; `mmgrpo run` with what it "
                "was made from brings it back, and then it is exported"
            )
    return lineage.one_of(run.state.policies, policy, run.folder)


def _made(item: Iteration, policy: str) -> bool:
    """An iteration that trained nothing names the policy too, which it left as it was."""
    metrics = item.train.manifest.metrics if item.train else {}
    return bool(metrics.get("trained")) and metrics["policy"] == policy


def _checked(train: Artifact, policy: str, adapters: AdapterSet, base: str) -> dict[str, str]:
    """The adapters' digests, once they, their base and the policy fit together."""
    path = train.file("policies.parquet")
    digests = adapters.digests()
    if named_adapters(path, policy) != digests or policy_digest(base, digests) != policy:
        raise DataError(
            f"{path}: policy {policy[:12]} does not follow from the base {base[:12]} and the adapters there; "
            "`mmgrpo verify` says more"
        )
    for folder in adapters.folders.values():
        made_for = read_json(folder / BASE).get("base")
        if made_for != base:
            raise DataError(f"{folder / BASE}: it was trained on the base {made_for}, the run's is {base}")
    return digests
