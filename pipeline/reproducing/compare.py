"""How far something made again is from what was recorded, and how far it may be.

On one machine type everything is bit-identical. What decides in which order sums are taken is the number of threads,
processor features (AVX2, AVX512, AMX) or the device, the versions of torch and its libraries, and `train_tokens`, which
cuts micro-batches. Where one is another, last bits differ, and training carries them on; the limits below say how far.

Policies are scored by sampling again, and which calls share a batch is of the moment: it turns last bits of
log-probabilities, rarely a token. So it is the table of scores that is compared, and not the calls behind it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from pipeline.audit.tables import files_differ
from schemas.groups import EXCLUDED, GROUPS, SUMMARY
from schemas.parquet import read_frame
from schemas.scores import SCORES
from schemas.training import BATCH_PLAN, LOGPROBS, TRAINED
from stages.contract import Artifact

if TYPE_CHECKING:
    import torch

IDENTICAL, SAME_SCORES, WITHIN, DIFFERS = "bit-identical", "the same scores", "within tolerance", "differs"


@dataclass(frozen=True)
class Tolerance:
    """How far things may be apart that were made on two machines."""

    logprobs: float
    """Mean absolute difference of a token's log-probability, nats."""
    update: float
    """Length of the difference of two weight updates (B A of every layer), as a share of the recorded update's."""
    score: float
    """Mean absolute difference of an example's score."""


TOLERANCES = {"float32": Tolerance(1e-4, 0.01, 0.02), "bfloat16": Tolerance(0.02, 0.25, 0.05)}


@dataclass
class Compared:
    """One job done again."""

    what: str
    state: str
    figures: dict[str, float] = field(default_factory=dict)
    """What was measured where it is not bit-identical."""
    allowed: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """What may not differ on any machine, and does."""

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        told = [f"{name.replace('_', ' ')} {value:.3g}{self._limit(name)}" for name, value in self.figures.items()]
        return f"{self.state:<17} {self.what}" + (f": {', '.join(told)}" if told else "")

    def _limit(self, name: str) -> str:
        return f" (at most {self.allowed[name]:g})" if name in self.allowed else ""


def compare(what: str, recorded: Artifact, again: Artifact, tolerance: Tolerance) -> Compared:
    """Compare an artifact with the same made again."""
    if recorded.digest == again.digest:
        return Compared(what, IDENTICAL)
    stage = recorded.manifest.stage
    if stage == "logprobs":
        return _judged(what, _logprobs(recorded, again), {"mean_difference": tolerance.logprobs}, [])
    if stage == "train":
        return _train(what, recorded, again, tolerance)
    if stage == "evaluate":
        if recorded.manifest.files["scores.parquet"] == again.manifest.files["scores.parquet"]:
            return Compared(what, SAME_SCORES)
        return _judged(what, _scores(recorded, again), {"mean_difference": tolerance.score}, [])
    problems, _ = files_differ(recorded, again, (GROUPS, EXCLUDED, SUMMARY))
    return Compared(what, DIFFERS if problems else WITHIN, problems=problems)


def _judged(what: str, figures: dict[str, float], allowed: dict[str, float], problems: list[str]) -> Compared:
    within = not problems and all(figures[name] <= limit for name, limit in allowed.items())
    return Compared(what, WITHIN if within else DIFFERS, figures, allowed, problems)


def _logprobs(recorded: Artifact, again: Artifact) -> dict[str, float]:
    key = ["rollout_id", "call_index", "policy"]
    frames = [read_frame(item.file("logprobs.parquet"), LOGPROBS, validate=False) for item in (recorded, again)]
    left, right = (frame.sort(key).explode("logprobs", empty_as_null=True) for frame in frames)
    if not left.select(key).equals(right.select(key)):
        return {"mean_difference": math.inf, "largest_difference": math.inf}
    apart = (left["logprobs"] - right["logprobs"]).abs()
    return {"mean_difference": _number(apart.mean()), "largest_difference": _number(apart.max())}


def _number(value: Any) -> float:
    return 0.0 if value is None else float(value)


def _scores(recorded: Artifact, again: Artifact) -> dict[str, float]:
    """Over examples: how far their mean scores are apart, a failed run counting as the recipe says."""
    missing = recorded.manifest.payload["recipe"]["evaluate"]["failure_score"]
    means = [
        read_frame(item.file("scores.parquet"), SCORES, columns=["example_id", "score"], validate=False)
        .group_by("example_id")
        .agg(pl.col("score").fill_null(missing).mean())
        for item in (recorded, again)
    ]
    both = means[0].join(means[1], on="example_id", how="full", suffix="_again")
    apart = (both["score"] - both["score_again"]).abs().fill_null(math.inf)
    return {
        "mean_difference": _number(apart.mean()),
        "examples_that_differ": float((apart > 0).sum()),
        "mean_recorded": float(recorded.manifest.metrics["mean"]),
        "mean_again": float(again.manifest.metrics["mean"]),
    }


def _train(what: str, recorded: Artifact, again: Artifact, tolerance: Tolerance) -> Compared:
    was, now = recorded.manifest.metrics, again.manifest.metrics
    if was["trained"] != now["trained"]:
        return Compared(what, DIFFERS, problems=[f"trained is {was['trained']}, made again {now['trained']}"])
    problems = []
    for spec in (BATCH_PLAN, TRAINED):
        name = f"{spec.name}.parquet"
        files = [item.manifest.files.get(name) for item in (recorded, again)]
        if files[0] != files[1]:
            frames = [read_frame(item.file(name), spec, validate=False) for item in (recorded, again)]
            problems += [] if frames[0].equals(frames[1]) else [f"{recorded.file(name)}: other rows than made again"]
    figures = _adapters(recorded.path, again.path)
    if was["policy"] == now["policy"]:
        return Compared(what, WITHIN if not problems else DIFFERS, figures, problems=problems)
    return _judged(what, figures, {"update_difference": tolerance.update}, problems)


def _adapters(recorded: Path, again: Path) -> dict[str, float]:
    """Distances of all weights of all adapters."""
    from safetensors.torch import load_file

    from stages.engines.adapters import WEIGHTS, read_adapters

    mine, theirs = read_adapters(recorded).folders, read_adapters(again).folders
    if mine.keys() != theirs.keys():
        return {"update_difference": math.inf}
    apart, length, total, count, largest = 0.0, 0.0, 0.0, 0, 0.0
    for name in sorted(mine):
        left, right = (load_file(folders[name] / WEIGHTS) for folders in (mine, theirs))
        if left.keys() != right.keys() or any(left[key].shape != right[key].shape for key in left):
            return {"update_difference": math.inf}
        for key in sorted(left):
            difference = (left[key].double() - right[key].double()).abs()
            total, count = total + float(difference.sum()), count + difference.numel()
            largest = max(largest, float(difference.max()))
        for a, b in _pairs(left, right):
            apart += _square([(a[0], b[0], 1.0), (a[1], b[1], -1.0)])
            length += _square([(a[0], b[0], 1.0)])
    share = math.sqrt(max(apart, 0.0) / length) if length else (0.0 if apart <= 0 else math.inf)
    return {"update_difference": share, "mean_weight_difference": total / count, "largest_weight_difference": largest}


Pair = tuple["torch.Tensor", "torch.Tensor"]


def _pairs(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> list[tuple[Pair, Pair]]:
    """(A of both, B of both) of every layer: a layer's update is B A."""
    found = []
    for name in sorted(left):
        if "lora_A" in name and (other := name.replace("lora_A", "lora_B")) in left:
            a = (left[name].double(), right[name].double())
            found.append((a, (left[other].double(), right[other].double())))
    return found


def _square(terms: list[tuple[torch.Tensor, torch.Tensor, float]]) -> float:
    """Squared length of the sum of sign · B A over terms, without making that matrix."""
    import torch

    a = torch.cat([term[0] for term in terms])
    b = torch.cat([term[1] * term[2] for term in terms], dim=1)
    return float(((b.T @ b) * (a @ a.T)).sum())
