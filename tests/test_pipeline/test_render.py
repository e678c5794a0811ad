"""Files for schedulers: what is in them, and that the tools they are for take them."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import main
from pipeline.cluster.chain import beside
from tests.test_e2e.kit import ROOT

TINY = ROOT / "data" / "tiny" / "recipe.toml"
CLUSTER = """
project = "/shared/my project"
run_dir = "/shared/runs/one"
command = ".venv/bin/mmgrpo"
setup = ["module load cuda"]
environment = { HF_HOME = "/shared/it's" }
secrets = { OPENAI_API_KEY = "keys/openai" }
[defaults]
cpus = 8
[stages.train]
gpus = 4
minutes = 90
retries = 5
[slurm]
partition = "gpu"
options = ["--constraint=h100"]
[kubernetes]
image = "registry.example.org/mmgrpo:1"
namespace = "lab"
node_selector = { pool = "h100" }
"""


def rendered(folder: Path, what: str, text: str = CLUSTER, *more: str) -> Path:
    (folder / "cluster.toml").write_text(text)
    target = folder / what
    assert main(["render", what, str(TINY), str(target), "--cluster", str(folder / "cluster.toml"), *more]) == 0
    return target


def test_every_script_for_slurm_is_sound_shell(tmp_path: Path) -> None:
    folder = rendered(tmp_path, "slurm")
    names = {file.name for file in folder.iterdir()}
    stages = ("base", "rollout", "group", "logprobs", "train", "evaluate", "drift", "next")
    assert names == {f"{stage}.sbatch" for stage in stages} | {"submit.sh"}
    for file in folder.iterdir():
        assert subprocess.run(["bash", "-n", file], check=False).returncode == 0
    assert (folder / "submit.sh").stat().st_mode & stat.S_IXUSR


def test_a_stage_asks_for_its_own_resources_and_else_for_the_defaults(tmp_path: Path) -> None:
    folder = rendered(tmp_path, "slurm")
    train, group = (folder / "train.sbatch").read_text(), (folder / "group.sbatch").read_text()
    assert "--gres=gpu:4" in train
    assert "--time=01:30:00" in train
    assert "--cpus-per-task=8" in train
    assert "-lt 5 ]" in train
    assert "gres" not in group
    assert "--constraint=h100" in group


def test_a_secret_is_named_and_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    for what in ("slurm", "kubernetes"):
        for file in rendered(tmp_path, what).iterdir():
            assert "sk-very-secret" not in file.read_text()
    assert 'OPENAI_API_KEY="$(cat keys/openai)"' in (tmp_path / "slurm" / "train.sbatch").read_text()
    job = json.loads((tmp_path / "kubernetes" / "04-train.json").read_text())
    secret = {"name": "OPENAI_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "openai"}}}
    assert secret in job["spec"]["template"]["spec"]["containers"][0]["env"]


@pytest.mark.parametrize("version", ["1.31", "1.34"])
def test_the_schemas_of_kubernetes_take_every_manifest(tmp_path: Path, version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    folder = rendered(tmp_path, "kubernetes")
    manifests: list[dict[str, Any]] = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    assert [manifest["kind"] for manifest in manifests] == ["Job"] * 7 + ["CronJob"]
    for manifest in manifests:
        validator.validate(manifest, version, strict=True)
    with pytest.raises(validator.ValidationError):
        validator.validate({**manifests[0], "spec": {"backoffLimit": "two"}}, version, strict=True)


def test_training_has_a_process_for_each_gpu_and_no_other_stage_has(tmp_path: Path) -> None:
    folder = rendered(tmp_path, "slurm", CLUSTER + "[stages.next]\ngpus = 2\n")
    assert "--exec train.processes=4 --iteration" in (folder / "train.sbatch").read_text()
    assert "--exec train.processes=2" in (folder / "next.sbatch").read_text()
    assert "train.processes" not in (folder / "rollout.sbatch").read_text()
    assert "srun" not in "".join(file.read_text() for file in folder.iterdir())


NODES = CLUSTER.replace("[stages.train]", "[stages.train]\nnodes = 3")


def test_training_on_several_nodes_is_started_on_each_by_slurm(tmp_path: Path) -> None:
    train = (rendered(tmp_path, "slurm", NODES) / "train.sbatch").read_text()
    for told in ("#SBATCH --nodes=3", "#SBATCH --ntasks-per-node=1", "--exec train.processes=4 --exec train.nodes=3"):
        assert told in train
    (line,) = [line for line in train.splitlines() if line.startswith("srun ")]
    assert line.endswith('"$1" &')
    before = train[: train.index("srun ")]
    assert "export MASTER_ADDR" in before
    assert "export MASTER_PORT" in before
    assert subprocess.run(["bash", "-n", tmp_path / "slurm" / "train.sbatch"], check=False).returncode == 0


@pytest.mark.parametrize("version", ["1.31", "1.34"])
def test_training_on_several_nodes_is_an_indexed_job_whose_pods_find_the_first(tmp_path: Path, version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    folder = rendered(tmp_path, "kubernetes", NODES)
    job, service = (json.loads((folder / name).read_text()) for name in ("04-train.json", "train-service.json"))
    for manifest in (job, service):
        validator.validate(manifest, version, strict=True)
    name, spec = job["metadata"]["name"], job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"] == name
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    meet = {"name": "MASTER_ADDR", "value": f"{name}-0.{name}"}
    assert meet in spec["template"]["spec"]["containers"][0]["env"]
    assert "train-service.json" in (folder / "run.sh").read_text()
    assert "completionMode" not in json.loads((folder / "00-base.json").read_text())["spec"]


def test_settings_of_the_recipe_reach_every_job(tmp_path: Path) -> None:
    folder = rendered(tmp_path, "slurm", CLUSTER, "--set", "train.learning_rate=0.01")
    for file in folder.glob("*.sbatch"):
        assert "--set train.learning_rate=0.01" in file.read_text()


def test_a_run_folder_may_be_an_address_and_logs_then_lie_with_the_project(tmp_path: Path) -> None:
    folder = rendered(tmp_path, "slurm", CLUSTER.replace('"/shared/runs/one"', '"s3://bucket/runs/one"'))
    for file in folder.glob("*.sbatch"):
        assert "--run-dir s3://bucket/runs/one" in file.read_text()
        assert "s3://bucket/runs/one/slurm" not in file.read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("project = 'relative'\nrun_dir = '/r'", "expected an absolute path"),
        ("project = '/p'", "run_dir: Field required"),
        ("project = '/p'\nrun_dir = 's3://ada:pw@b/r'", "put credentials into the environment"),
        ("project = '/p'\nrun_dir = '/r'\ngpu = 1", "gpu: Extra inputs"),
        ("project = '/p'\nrun_dir = '/r'\n[stages.trian]\ngpus = 1", "no stage trian"),
        ('project = "/p"\nrun_dir = "/r"\nsetup = ["a\\nb"]', "setup.0"),
        ("project = '/p'\nrun_dir = '/r'\n[slurm]\noptions = ['; rm -rf /']", "expected options like"),
        ("project = ", "is not TOML"),
        ("project='/p'\nrun_dir='/r'\n[stages.next]\nnodes=2", "stages.next.nodes = 2: the train stage alone"),
        ("project='/p'\nrun_dir='/r'\n[defaults]\nnodes=2", "defaults.nodes = 2"),
        ("project='/p'\nrun_dir='s3://b/r'\n[stages.train]\nnodes=2", "run_dir an address: nodes read checkpoints"),
        ("project='/p'\nrun_dir='/r'\nenvironment={A='1'}\nsecrets={A='f'}", "A: stands in `environment`"),
    ],
)
def test_a_description_of_a_cluster_that_makes_no_sense_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    (tmp_path / "c.toml").write_text(text)
    assert main(["render", "slurm", str(TINY), str(tmp_path / "o"), "--cluster", str(tmp_path / "c.toml")]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_what_lies_in_the_folder_is_not_written_over(tmp_path: Path) -> None:
    folder = rendered(tmp_path, "slurm")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert main(["render", "kubernetes", str(TINY), str(folder), "--cluster", str(tmp_path / "cluster.toml")]) == 2
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_shell_told_to_end_tells_its_command_and_keeps_its_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(143))\nprint(1, flush=True)\ntime.sleep(60)\n"
    )
    command = f"{sys.executable} {script}"
    shell = shutil.which("bash")
    assert shell
    process = subprocess.Popen([shell, "-c", f"{beside(command)}\nexit $code"], stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"1\n"
    process.terminate()
    assert process.wait(30) == 143
