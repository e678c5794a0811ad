"""Which members of a group table moved which adapter, in one train stage."""

from __future__ import annotations

import polars as pl

from schemas.errors import DataError
from schemas.groups import GROUPS
from schemas.parquet import read_frame
from schemas.policies import SHARED, named_adapters
from schemas.training import TRAINED
from stages.contract import Artifact
from stages.engines.adapters import AdapterSet, read_adapters


def adapters_of(train: Artifact | None) -> AdapterSet | None:
    """The adapters that a train stage made or carried over; None where it trained nothing."""
    if train is None or not train.manifest.metrics["trained"]:
        return None
    return read_adapters(train.path)


def digests_of(train: Artifact, found: AdapterSet | None) -> dict[str, str]:
    """Digests of the adapters that a train stage made or carried over, by module.

    Raises:
        DataError: when its table of policies names others than lie there.
    """
    if found is None:
        return {}
    path, policy = train.file("policies.parquet"), str(train.manifest.metrics["policy"])
    digests = named_adapters(path, policy)
    if digests.keys() != found.names.keys():
        raise DataError(
            f"{path}: adapters of the policy {policy[:12]} are for {', '.join(sorted(digests)) or 'nothing'}, those in "
            f"{train.folder} for {', '.join(sorted(found.names))}. Restore it, or delete its artifact and run again"
        )
    return digests


def took_steps(train: Artifact, name: str) -> bool:
    """Whether a train stage took a step with an adapter."""
    told = train.manifest.metrics.get("adapters")
    if told is None:  # earlier releases had one adapter, which took every step
        return True
    return int(told.get(name, {"steps": 0})["steps"]) > 0


def members_moving(group: Artifact, train: Artifact | None) -> pl.DataFrame:
    """The group table with the name of the adapter that each member moved, in `adapter`; null where it moved none."""
    return with_adapter(read_frame(group.file("groups.parquet"), GROUPS, validate=False), train)


def with_adapter(members: pl.DataFrame, train: Artifact | None) -> pl.DataFrame:
    """Members with the name of the adapter that they moved; null where they moved none.

    The train stage does not admit every member: a teacher's bad ones, or all but the best in rejection fine-tuning.
    """
    names = _trained_by(train)
    name = pl.lit(names.get(SHARED), pl.String)
    if SHARED not in names:
        name = pl.col("module").replace_strict(names, default=None, return_dtype=pl.String)
    return members.with_columns(adapter=pl.when(_admitted(members, train)).then(name))


def _trained_by(train: Artifact | None) -> dict[str, str]:
    """The adapter that each module's members moved, under "*" where all moved one."""
    found = adapters_of(train)
    if found is None or train is None:
        return {}
    return {module: name for module, name in found.names.items() if module == SHARED or took_steps(train, name)}


def _admitted(members: pl.DataFrame, train: Artifact | None) -> pl.Series:
    """Which members the train stage admitted; of a call that stands in a group several times the original first."""
    if train is None or "trained.parquet" not in train.manifest.files:
        return pl.Series([True] * members.height, dtype=pl.Boolean)
    key = ["group_id", "rollout_id", "call_index"]
    counts = read_frame(train.file("trained.parquet"), TRAINED, validate=False)
    is_copy = pl.col("copy_kind") != "none"
    ranked = members.select(*key, rank=pl.int_range(pl.len()).over(key, order_by=is_copy))
    joined = ranked.join(counts, on=key, how="left", maintain_order="left")
    return joined.select(pl.col("rank") < pl.col("members").fill_null(0)).to_series()
