"""Claims of SECURITY.md that no other test holds."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest

from pipeline.cluster.chain import Chain
from pipeline.cluster.kubernetes import kubernetes_files
from pipeline.cluster.slurm import slurm_files
from pipeline.manifests import MANIFEST, check_files, read_manifest
from pipeline.recipes import load_recipe
from schemas.cluster import Cluster
from tests.test_e2e.kit import PROGRAM, RECIPE, ROOT, own_recipe, run
from tests.test_pipeline.test_store import make

FORBIDDEN = {
    "pickle": None,
    "cloudpickle": None,
    "dill": None,
    "marshal": None,
    "shelve": None,
    "joblib": None,
    "torch": "load",
    "yaml": "load",
    "os": "system",
}
"""What runs code that a file brings: whole modules, or one function of a module."""


def _calls_of_code(tree: ast.AST) -> set[str]:
    found = set()
    whole = {name for name, function in FORBIDDEN.items() if function is None}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {item.name for item in node.names if whole.intersection(item.name.split("."))}
        elif isinstance(node, ast.ImportFrom):
            held, module = {item.name for item in node.names}, str(node.module)
            found |= held if whole.intersection(module.split(".")) else held & {*whole, FORBIDDEN.get(module)}
        elif isinstance(node, ast.Attribute) and node.attr in whole:
            found.add(ast.unparse(node))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            module, _, function = name.rpartition(".")
            if name in {"eval", "exec"} or (module in FORBIDDEN and FORBIDDEN[module] == function):
                found.add(name)
            told = {item.arg: item.value for item in node.keywords}
            if any(isinstance(told.get(key), ast.Constant) and told[key].value is True for key in CODE):
                found.add(name)
    return found


CODE = ("trust_remote_code", "allow_all_kernels", "shell")


def test_nothing_unpickles_runs_code_of_a_repository_or_a_shell() -> None:
    files = [path for folder in ("pipeline", "stages", "schemas") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {path.relative_to(ROOT).as_posix() for path in files if _calls_of_code(ast.parse(path.read_text()))}
    assert found == set()


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import multiprocessing.pickle",
        "from ray import cloudpickle",
        "from ray.cloudpickle import loads",
        "ray.cloudpickle.loads(x)",
        "from torch import load",
        "torch.load(x)",
        "eval(x)",
        "f(trust_remote_code=True)",
    ],
)
def test_the_search_for_such_calls_finds_them(code: str) -> None:
    assert _calls_of_code(ast.parse(code))


def test_a_link_in_the_place_of_a_file_does_not_verify_although_its_bytes_are_right(tmp_path: Path) -> None:
    artifact = make(tmp_path / "store")
    manifest = read_manifest(artifact.path / MANIFEST)
    (file,) = [artifact.path / name for name in manifest.files if name.endswith("t.parquet")]
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert any("a link" in problem for problem in check_files(artifact.path, manifest))


HOSTILE = "a b'\"$(touch owned)`touch owned`;touch owned&\\"


def test_names_and_settings_reach_the_scripts_of_a_cluster_as_they_are(tmp_path: Path) -> None:
    """Each script is run with a command that writes its arguments down: nothing else happens."""
    recipe = own_recipe(tmp_path / "own")
    recorder = tmp_path / "record"
    recorder.write_text('#!/bin/bash\nprintf "%s\\0" "$@" >> "$0.out"\n')
    recorder.chmod(0o755)
    settings = (f"program.timeout_s={HOSTILE}",)
    cluster = Cluster.model_validate(
        {"project": str(tmp_path), "run_dir": str(tmp_path / "run"), "command": str(recorder)}
        | {"environment": {"SAID": HOSTILE}, "kubernetes": {"image": HOSTILE}}
    )
    chain = Chain(load_recipe(recipe, []).recipe, f"{HOSTILE}.toml", settings, cluster)
    (tmp_path / "jobs").mkdir()
    for name, text in slurm_files(chain).items():
        if name.endswith(".sbatch"):
            (tmp_path / "jobs" / name).write_text(text)
            subprocess.run(["bash", name, "0"], cwd=tmp_path / "jobs", check=True, timeout=60)
    said = (tmp_path / "record.out").read_bytes().decode().split("\0")
    assert said.count(f"{HOSTILE}.toml") == said.count(settings[0]) == len(list((tmp_path / "jobs").glob("*.sbatch")))
    assert not list(tmp_path.rglob("owned"))
    for name, text in kubernetes_files(chain, 0).items():
        if name.endswith(".json"):
            assert json.loads(text)
            continue
        assert HOSTILE not in text
        assert not re.search(r"(?m)^\s*touch", text)


LEAKING = PROGRAM.replace(
    "        return call(",
    "        import os\n        if inputs['word'] == 'w0':\n"
    "            raise RuntimeError('401: bad key ' + os.environ['SOME_API_KEY'])\n        return call(",
)


def test_keys_of_the_environment_are_in_no_file_of_a_run_and_in_nothing_that_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The program raises with a key in its message, as clients of services do."""
    secret = "s3cr3t-of-the-environment"
    for name in ("SOME_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, secret)
    recipe = own_recipe(tmp_path / "own", program=LEAKING, recipe=RECIPE.replace("examples = 4", "examples = 6"))
    assert run(recipe, tmp_path / "run", "--set", "run.iterations=1", "--set", "name=own") == 0
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert [path.name for path in files if secret.encode() in _plain_bytes(path)] == []
    said = capfd.readouterr()
    assert secret not in said.out + said.err
    assert any(b"401: bad key ***" in _plain_bytes(path) for path in files)  # the error itself is kept


def _plain_bytes(path: Path) -> bytes:
    if path.suffix != ".parquet":
        return path.read_bytes()
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return json.dumps(table.to_pylist(), default=str).encode() + repr(table.schema.metadata).encode()


def test_every_test_and_file_that_security_md_names_is_there() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    named = set(re.findall(r"`((?:tests|stages|schemas|pipeline)/[\w./-]+)`", text))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    every = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    tests = set(re.findall(r"`(test_\w+)`", text))
    assert [name for name in sorted(tests) if f"def {name}(" not in every] == []
