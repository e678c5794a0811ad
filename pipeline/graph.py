"""The artifacts of a run as a graph: what each was made from, and what was made from it.

Every artifact of the run folder is in it, also those of earlier recipes, which run.json does not name any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from pipeline.manifests import read_stored
from pipeline.store import Store
from stages.contract import Artifact


class Graph:
    """Artifacts, found by digest and by the policy that they made."""

    def __init__(self, artifacts: Iterable[Artifact]) -> None:
        self.artifacts = tuple(artifacts)
        self._by_digest: dict[str, Artifact] = {}
        self._by_policy: dict[str, Artifact] = {}
        for artifact in self.artifacts:
            self._by_digest.setdefault(artifact.digest, artifact)
            if (policy := made_policy(artifact)) is not None:
                self._by_policy.setdefault(policy, artifact)

    def of(self, *stages: str) -> tuple[Artifact, ...]:
        """The artifacts of some stages."""
        return tuple(item for item in self.artifacts if item.manifest.stage in stages)

    def by_digest(self, digest: str) -> Artifact | None:
        """The artifact of a digest. Of several with equal bytes any will do."""
        return self._by_digest.get(digest)

    def holder(self, policy: str) -> Artifact | None:
        """The train artifact, or the base, that made a policy."""
        return self._by_policy.get(policy)

    @property
    def policies(self) -> tuple[str, ...]:
        """Digests of all policies, the base's first, then those of each iteration."""

        def place(policy: str) -> tuple[int, str]:
            return int(self._by_policy[policy].manifest.payload["params"].get("iteration", -1)), policy

        return tuple(sorted(self._by_policy, key=place))

    def inputs(self, artifact: Artifact) -> dict[str, Artifact | None]:
        """What an artifact was made from, by role; None where that is not here (any more).

        An adapter counts as its policy: any artifact that made the policy stands for it.
        """
        found: dict[str, Artifact | None] = {}
        for role, digest in sorted(artifact.manifest.payload["inputs"].items()):
            found[role] = self.by_digest(digest) or self.holder(digest)
        return found

    def users(self, artifact: Artifact) -> Iterator[tuple[str, Artifact]]:
        """What was made from an artifact, with the role that it had."""
        yield from self._users.get(artifact.digest, ())
        policy = made_policy(artifact)
        if policy is not None:
            yield from self._users.get(policy, ())

    @cached_property
    def _users(self) -> dict[str, list[tuple[str, Artifact]]]:
        found: dict[str, list[tuple[str, Artifact]]] = {}
        for artifact in self.artifacts:
            for role, digest in sorted(artifact.manifest.payload["inputs"].items()):
                found.setdefault(digest, []).append((role, artifact))
        return found


def made_policy(artifact: Artifact) -> str | None:
    """The policy that an artifact made: a train artifact's, or the base's. None for all others."""
    stage, metrics = artifact.manifest.stage, artifact.manifest.metrics
    if stage == "base" or (stage == "train" and metrics["trained"]):
        return str(metrics["policy"])
    return None


def open_graph(folder: Path) -> Graph:
    """The graph of a run folder.

    Raises:
        DataError: naming a manifest that is damaged.
    """
    return Graph(Artifact(path, read_stored(path)) for _, path in Store(folder / "artifacts").all())
