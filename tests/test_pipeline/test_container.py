"""The container image: what its file says, checked without an engine; built where one runs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.test_e2e.kit import ROOT
from tests.test_pipeline.test_render import rendered


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Containerfile in order, lines that go on joined."""
    lines = [line for line in (ROOT / "Containerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def values(name: str) -> list[str]:
    return [value for instruction, value in instructions() if instruction == name]


def copied() -> set[str]:
    sources = [shlex.split(value)[:-1] for value in values("COPY") if not value.startswith("--from")]
    return {source for each in sources for source in each}


def test_every_instruction_is_one_that_engines_know() -> None:
    known = {"FROM", "ARG", "ENV", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in instructions()} <= known
    assert instructions()[0][0] == "FROM"
    assert json.loads(values("ENTRYPOINT")[-1]) == ["mmgrpo"]


@pytest.mark.parametrize("step", values("RUN"))
def test_every_step_is_sound_shell(step: str) -> None:
    assert subprocess.run(["sh", "-n", "-c", step], check=False).returncode == 0


def test_what_it_copies_is_there_tracked_and_let_through() -> None:
    ignore = (ROOT / ".containerignore").read_text().splitlines()
    let_through = {line[1:] for line in ignore if line.startswith("!")}
    assert "*" in ignore
    assert copied() == let_through, "nothing else may reach a layer"
    for source in copied():
        assert (ROOT / source).exists(), source
    assert (ROOT / ".dockerignore").read_text() == (ROOT / ".containerignore").read_text()


def test_it_has_all_that_the_package_is_built_from() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {*project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"], project["project"]["readme"]}
    assert needed | {*project["project"]["license-files"], "pyproject.toml", "constraints.txt"} == copied()
    default = dict(value.partition("=")[::2] for value in values("ARG"))["EXTRAS"]
    assert set(default.split(",")) <= project["project"]["optional-dependencies"].keys()


def test_versions_are_those_that_are_tested() -> None:
    installs = [part for step in values("RUN") for part in re.findall(r"pip install [^;]*", step)]
    assert installs
    assert all("--constraint constraints.txt" in install for install in installs)
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert all(f"python:{python.removeprefix('>=')}-slim" in source for source in values("FROM"))


def test_it_runs_as_nobody_in_particular_and_holds_no_secret(tmp_path: Path) -> None:
    assert values("USER") == ["1000:1000"]
    text = (ROOT / "Containerfile").read_text().lower()
    for word in ("password", "token", "secret", "api_key", "--mount=type=secret", "curl", "wget"):
        assert word not in text


def test_manifests_for_kubernetes_run_as_its_user_and_call_its_command(tmp_path: Path) -> None:
    text = "project = '/work/p'\nrun_dir = '/work/r'\n[kubernetes]\nimage = 'mmgrpo'\n"
    pod = json.loads((rendered(tmp_path, "kubernetes", text) / "00-base.json").read_text())["spec"]["template"]["spec"]
    user, group = map(int, values("USER")[-1].split(":"))
    context = pod["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (user, group, group)
    assert context["runAsNonRoot"]
    (container,) = pod["containers"]
    assert container["command"][0] == json.loads(values("ENTRYPOINT")[-1])[0]
    assert container["volumeMounts"][0]["mountPath"] == values("WORKDIR")[-1]


def engine() -> str | None:
    """An engine that runs, not its command alone."""
    for name in ("podman", "docker"):
        if found := shutil.which(name):
            told = subprocess.run([found, "info"], capture_output=True, check=False, timeout=60)
            if told.returncode == 0 and b"ERROR" not in told.stderr:
                return name
    return None


def test_without_an_engine_make_says_so_and_builds_nothing() -> None:
    done = subprocess.run(["make", "image", "CONTAINERS=false"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "No container engine runs here" in done.stderr


@pytest.mark.slow
def test_the_image_says_what_it_has() -> None:
    name = engine()
    if name is None:
        pytest.skip("no container engine runs here")
    subprocess.run(
        ["make", "image", f"CONTAINERS={name}", "IMAGE=mmgrpo-test", "ACCELERATOR=cpu"], cwd=ROOT, check=True
    )
    command = [name, "run", "--rm", "--network=none", "mmgrpo-test"]
    told = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert "render" in told.stdout
    who = subprocess.run(
        [*command[:3], "--entrypoint=id", command[-1], "-u"], capture_output=True, text=True, check=True
    )
    assert who.stdout.strip() == "1000"
