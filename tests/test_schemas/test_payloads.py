"""Payloads of manifests that somebody made up are told by the part that is not what it must be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.graph import open_graph
from pipeline.manifests import MANIFEST, read_manifest
from pipeline.runfile import RunFile, read_run, write_run
from pipeline.store import Store
from schemas.canonical import canonical_json, digest
from schemas.errors import DataError
from schemas.made_up import FILES, manifest_problem
from schemas.manifest import Manifest
from schemas.payloads import OF_STAGE
from tests.test_pipeline.report_run import RunWriter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one iteration, with what manifests hold at least."""
    writer = RunWriter(tmp_path, iterations=1)
    writer.add_setup()
    writer.add_scores(0, [0.5])
    writer.add_rollout()
    writer.add_group()
    writer.add_train()
    return writer.write()


def changed(run: Path, of: str, **parts: Any) -> Manifest:
    """A manifest with parts of its payload, named with `__` for dots, made up, and its digests made again."""
    path = next(run.glob(f"artifacts/{of}/*/{MANIFEST}"))
    manifest = read_manifest(path)
    payload: dict[str, Any] = json.loads(canonical_json(manifest.payload))
    for name, value in parts.items():
        *way, last = name.split("__")
        holder = payload
        for step in way:
            holder = holder[step]
        if value is None:
            del holder[last]
        else:
            holder[last] = value
    return manifest.model_copy(update={"payload": payload, "key": digest(payload)}).sealed()


@pytest.mark.parametrize(
    ("stage", "parts", "told"),
    [
        ("rollout", {"params": []}, "payload.params: Input should be"),
        ("rollout", {"params__iteration": "0"}, "payload.params.iteration: Input should be a valid integer (got '0')"),
        ("rollout", {"params__iteration": -1}, "payload.params.iteration: "),
        ("rollout", {"params__policy": "../../x"}, "payload.params.policy: String should match pattern"),
        ("rollout", {"inputs__program": None}, "payload.inputs.program: Field required"),
        ("rollout", {"inputs__more": 5}, "payload.inputs.more: Input should be a valid string (got '5')"),
        ("group", {"recipe__k": True}, "payload.recipe.k: Input should be a valid integer (got 'True')"),
        ("train", {"inputs__group": "x"}, "payload.inputs.group: String should match pattern"),
        ("evaluate", {"recipe__evaluate__failure_score": "0"}, "payload.recipe.evaluate.failure_score: "),
        ("evaluate", {"stage": "rollout"}, "payload.stage: expected the manifest's 'evaluate' (got 'rollout')"),
        ("base", {"params__base__base": 10**400}, "payload.params.base.base: "),
        ("program", {"params__identity__state": ["x"]}, "payload.params.identity.state: "),
    ],
)
def test_a_part_of_another_kind_is_named(run: Path, stage: str, parts: dict[str, Any], told: str) -> None:
    problem = manifest_problem(changed(run, stage, **parts))
    assert problem is not None
    assert problem.startswith(told)
    assert problem.endswith("somebody made it up.")


def test_what_nobody_reads_is_free(run: Path) -> None:
    assert manifest_problem(changed(run, "rollout", recipe__of_yours=["?"], params__of_yours=5)) is None


def test_an_artifact_without_a_file_that_all_of_its_stage_have_is_refused(run: Path) -> None:
    manifest = read_manifest(next(run.glob(f"artifacts/group/*/{MANIFEST}")))
    files = {name: entry for name, entry in manifest.files.items() if name != "excluded.parquet"}
    problem = str(manifest_problem(manifest.model_copy(update={"files": files}).sealed()))
    assert problem.startswith("files: an artifact of the stage group has a file excluded.parquet")


def test_a_manifest_of_another_stage_than_its_folder_is_refused(run: Path) -> None:
    folder = next(run.glob("artifacts/group/*"))
    moved = folder.rename(run / "artifacts" / "train" / folder.name)
    with pytest.raises(DataError, match=rf"{moved.name}/manifest\.json: it is group/.*, but lies elsewhere"):
        open_graph(run)
    with pytest.raises(DataError, match=r"its key is group/.*, expected train/"):
        Store(run / "artifacts").find("train", read_manifest(moved / MANIFEST).key)


@pytest.mark.filterwarnings("ignore:Pydantic serializer")  # what is made up is not what the model holds
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"setup": {"base": "../../../../etc"}}, "setup.base: String should match pattern"),
        ({"setup": {"../x": "0" * 64}}, "there is no stage '../x'"),
        ({"iterations": ({"rollback": "0" * 64},)}, "there is no stage 'rollback'"),
        ({"policies": ()}, "policies ends before iteration 0 does"),
        ({"setup": {}}, "setup has no examples, from which all else is made"),
        ({"tests_opened": "1"}, "tests_opened: Input should be a valid integer"),
    ],
)
def test_a_run_file_that_does_not_hang_together_is_refused(run: Path, change: dict[str, Any], told: str) -> None:
    whole = read_run(run)
    write_run(run, RunFile.model_construct(**(dict(whole) | change)))
    with pytest.raises(DataError) as caught:
        read_run(run)
    assert str(caught.value).startswith(f"{run / 'run.json'}: not a run file of this release: {told}")


def test_every_stage_has_its_payload_and_its_files() -> None:
    from pipeline.stages_in_order import STAGES

    assert {*STAGES, "ingest"} == set(OF_STAGE) == set(FILES)
