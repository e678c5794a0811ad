"""A job: one run of one stage, with the key that says whether it has been done already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.canonical import digest
from schemas.recipe import Recipe
from stages.contract import Artifact, Stage

OF_POLICIES = ("evaluations", "drifts")
"""Slots of jobs that look at a policy, by split and its index."""


@dataclass(frozen=True)
class Job:
    """One stage of the walk.

    `slot` says where run.json keeps the job's key: ("setup", stage), ("iterations", index, stage), or
    ("evaluations", split, index of the policy) and likewise ("drifts", …); for "released" in the index's place it keeps
    none. Where a stage runs several times in an iteration, `stage.PURPOSE` stands for `stage`; see `stage_of`.
    """

    stage: Stage
    slot: tuple[str, ...]
    params: Mapping[str, Any]
    artifacts: Mapping[str, Artifact | None]
    """Inputs by role; None where the input is not made yet (when planning)."""
    identities: Mapping[str, str] = field(default_factory=dict)
    """Roles whose identity in the key is not the whole artifact: the adapter counts as its policy."""

    @property
    def label(self) -> str:
        """What a person calls the job."""
        if self.slot[0] == "iterations":
            _, dot, purpose = self.slot[2].partition(".")
            return f"iteration {self.slot[1]} · {self.stage.NAME}{f' ({purpose})' if dot else ''}"
        if self.of_policy:
            name = {"0": "base", "released": "what is released"}.get(self.slot[2])
            name = name or f"after iteration {int(self.slot[2]) - 1}"
            return f"{self.stage.NAME} {self.slot[1]} · {name}"
        return f"{self.slot[0]} · {self.stage.NAME}"

    @property
    def of_policy(self) -> bool:
        """Whether it looks at one policy of the run, and no policy depends on it."""
        return self.slot[0] in OF_POLICIES

    @property
    def waits_for(self) -> list[str]:
        """Roles of inputs that are not made yet."""
        return [role for role, artifact in self.artifacts.items() if artifact is None]

    def payload(self, recipe: Recipe) -> dict[str, Any]:
        """Everything that the key covers. All inputs must be there."""
        inputs = {
            role: self.identities.get(role) or artifact.digest
            for role, artifact in self.artifacts.items()
            if artifact is not None
        }
        return {
            "stage": self.stage.NAME,
            "stage_version": self.stage.VERSION,
            "recipe": self.stage.recipe_slice(recipe),
            "params": dict(self.params),
            "inputs": inputs,
        }


def stage_of(name: str) -> str:
    """The stage of a name in an iteration of run.json: `logprobs.old` is of the stage `logprobs`."""
    return name.partition(".")[0]


def key_of(payload: Mapping[str, Any]) -> str:
    """The key of a payload: sha256 of its canonical JSON."""
    return digest(dict(payload))


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two payloads of one stage, field by field, in words."""
    before, after = _flatten(old), _flatten(new)
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name, "(absent)"), after.get(name, "(absent)")
        if was == now:
            continue
        section, _, rest = name.partition(".")
        if section == "inputs":
            lines.append(f"input '{rest}' changed ({_short(was)} -> {_short(now)})")
        elif section == "stage_version":
            lines.append(f"the stage's code changed (version {was} -> {now})")
        else:
            lines.append(f"{rest} {_short(was)} -> {_short(now)}")
    return lines


def _flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping):
            flat.update(_flatten(item, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = item
    return flat


def _short(value: Any) -> str:
    text = str(value)
    if len(text) == 64 and set(text) <= set("0123456789abcdef"):
        return text[:12]
    return text if len(text) <= 60 else f"{text[:57]}…"
