"""What the README tells a user to type is typed here."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.reproducing.compare import TOLERANCES
from schemas.recipe_ingest import IngestSection
from schemas.recipe_prices import PricesSection
from tests.test_e2e.kit import ROOT, artifact, mmgrpo, state
from tests.test_e2e.serving_kit import TinySampler
from tests.test_e2e.test_traces import attribute, export, trace
from tests.test_pipeline.capture_kit import ChatServer
from tests.test_pipeline.report_run import whole_run

README = (ROOT / "README.md").read_text()
FILES = dict(re.findall(r"<!-- test: (\S+) -->\n```\w+\n(.*?)```", README, re.DOTALL))
SHELL = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
TINY = ("--set", "model.base=tiny-random", "--set", "model.dtype=float32", "--set", "train.precision=float32")
SMALL = ("--set", "rollout.examples=2", "--set", "rollout.rollouts=3", "--set", "rollout.sampling.max_new_tokens=8")
QUICK = ("--set", "evaluate.sampling.max_new_tokens=8", "--set", "adapter.r=2", "--exec", "progress=off")


@pytest.fixture
def shell(tmp_path: Path) -> Path:
    """A folder to type commands in: `data` as in the repository, and `mmgrpo` on the path."""
    shutil.copytree(ROOT / "data" / "tiny", tmp_path / "data" / "tiny")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "mmgrpo").write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m pipeline.cli "$@"\n')
    # Stands in for Slurm, which test_slurm has: runs the script at once and prints a job number.
    (tools / "sbatch").write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nbash "$@" >&2 && echo 1\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    return tmp_path


def type_in(shell: Path, commands: str) -> None:
    environment = {**os.environ, "PATH": f"{shell / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-e", "-c", commands], cwd=shell, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def unpack(folder: Path, name: str) -> Path:
    for path, text in FILES.items():
        if path.startswith(f"{name}/"):
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
    return folder / name / "recipe.toml"


def test_the_first_lines_name_the_two_commands_and_the_makefile_has_them() -> None:
    assert re.findall(r"^make (\w+)", SHELL[0], re.MULTILINE) == ["demo", "test"]
    assert {"demo", "test", "setup"} <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_link_leads_somewhere() -> None:
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", README, flags=re.DOTALL), re.MULTILINE)
    anchors = {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("https://")]
    assert [link for link in links if link not in anchors and not (ROOT / link).is_file()] == []


def test_every_command_of_the_overview_works_in_order(shell: Path) -> None:
    block = next(block for block in SHELL if "mmgrpo lineage" in block)
    assert {line.split()[1] for line in block.splitlines()} == {
        "run", "plan", "stage", "evaluate", "verify", "lineage", "export", "costs", "report", "serve", "doctor",
        "status",
    }  # fmt: skip
    # doctor fails where something is missing, such as the small model's package; the rest may not.
    type_in(shell, "\n".join(line for line in block.splitlines() if "doctor" not in line))


def test_every_command_of_the_audit_works_in_order(shell: Path) -> None:
    block = next(block for block in SHELL if "mmgrpo reproduce" in block)
    assert [line.split()[1] for line in block.splitlines()] == ["verify", "lineage", "lineage", "diff", "reproduce"]
    one = "mmgrpo run data/tiny/recipe.toml --set run.iterations=1 --exec progress=off"
    type_in(shell, f"{one}\n{one} --set seed=1 --run-dir runs/other")
    made = artifact(shell / "runs" / "tiny", "train").path.relative_to(shell) / "adapter"
    rollouts = artifact(shell / "runs" / "tiny", "rollout").file("rollouts.parquet")
    rollout = pl.read_parquet(rollouts)["rollout_id"][0]
    type_in(shell, block.replace("ADAPTER", str(made)).replace(" ID ", f" {rollout} "))
    told = json.loads((shell / "again" / "reproduction.json").read_text())
    assert told["state"] == "bit-identical"
    assert {str(limit) for limit in TOLERANCES["float32"].__dict__.values()} == {"0.0001", "0.01", "0.02"}


def test_the_jobs_of_a_cluster_are_written_and_run(shell: Path) -> None:
    unpack(shell, "own")
    described = (shell / "own" / "cluster.toml").read_text()
    described = described.replace("/shared/project", str(shell)).replace(".venv/bin/mmgrpo", "mmgrpo")
    described = described.replace("gpus = 4 ", "gpus = 1 ")  # of which train would start a process each; not here
    (shell / "own" / "cluster.toml").write_text(described.replace("/shared/run", str(shell / "run")))
    (shell / "own" / "openai.key").write_text("a key")
    block = next(block for block in SHELL if "render slurm" in block)
    lines = [line.partition("#")[0].strip() for line in block.splitlines()]
    slurm, submit, kubernetes, following = [line.replace("own/recipe.toml", "data/tiny/recipe.toml") for line in lines]
    cluster = shell / "own" / "cluster.toml"
    cluster.write_text(cluster.read_text().replace("/home/me/openai.key", str(shell / "own" / "openai.key")))
    type_in(shell, f"{slurm}\n{submit} 0 0")
    names = {name.partition(".")[0] for stages in state(shell / "run").iterations for name in stages}
    assert names == {"rollout", "group", "logprobs", "train"}
    assert len(state(shell / "run").iterations) == 1
    assert len(state(shell / "run").evaluations["dev"]) == 2
    cluster.write_text(cluster.read_text().replace(str(shell / "own" / "openai.key"), "keys/openai"))
    type_in(shell, f"{kubernetes}\n{following}")
    assert len(list((shell / "manifests").glob("*.json"))) == 8
    assert len(state(shell / "runs" / "tiny").iterations) == 1


def test_what_wraps_a_command_for_an_orchestrator_is_python() -> None:
    blocks = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "mmgrpo next" in block]
    assert len(blocks) == 2
    for block in blocks:
        compile(block, "README.md", "exec")
    assert all(codes in "".join(blocks) for codes in ("skip_on_exit_code=10", "(0, 10)"))


def test_all_rollouts_are_served_until_they_have_been_looked_at(shell: Path) -> None:
    (shell / "runs").mkdir()
    whole_run(shell / "runs" / "tiny")
    block = next(block for block in SHELL if "report runs/tiny --serve" in block and "lineage" not in block)
    environment = {**os.environ, "PATH": f"{shell / 'bin'}:{os.environ['PATH']}"}
    with subprocess.Popen(
        ["sh", "-c", f"exec {block}"], cwd=shell, env=environment, stdout=subprocess.PIPE, text=True
    ) as typed:
        assert typed.stdout is not None
        assert typed.stdout.readline() == "Report: runs/tiny/report.html\n"
        address = typed.stdout.readline().removeprefix("Rollouts: ").strip()
        with urllib.request.urlopen(address) as answer:
            assert b"made-up: rollouts" in answer.read()
        typed.send_signal(signal.SIGINT)
        assert "Ended." in typed.stdout.read()
    assert typed.returncode == 0


def test_bring_your_own_function(tmp_path: Path) -> None:
    recipe = unpack(tmp_path, "own")
    assert mmgrpo("run", recipe, "--run-dir", tmp_path / "run", "--iterations", "1", *TINY, *SMALL, *QUICK) == 0
    statuses = artifact(tmp_path / "run", "rollout").manifest.metrics["statuses"]
    assert set(statuses) <= {"ok", "parse_failed"}
    assert mmgrpo("verify", tmp_path / "run") == 0


def test_logged_traces_become_a_snapshot_and_are_trained_on(shell: Path) -> None:
    recipe = unpack(shell, "own")
    examples = (recipe.parent / "examples.csv").read_text().splitlines()[1:]
    texts = [line.split(",")[0] for line in examples if line.endswith(",train")]
    spans, scores = [], []
    for number in range(1, 13):
        text = texts[number % len(texts)]
        spans += [*_logged(number, text)]
        scores.append({"trace_id": f"{number:032x}", "name": "thumbs", "score": number % 3 / 2})
    (shell / "traces").mkdir()
    export(spans, shell / "traces" / "spans.json")
    (shell / "scores.jsonl").write_text("".join(json.dumps(score) + "\n" for score in scores))
    block = next(block for block in SHELL if "--suggest-modules" in block)
    propose, ingest, run = (line for line in block.replace("\\\n", "").splitlines() if line)
    tiny = " ".join((*TINY, *SMALL, *QUICK, "--set", "group.k=4", "--set", "run.iterations=1"))
    base = " ".join(TINY)
    type_in(shell, f"{propose.partition('#')[0]} {base} > rules.toml")
    assert "every call has a module" in (shell / "rules.toml").read_text()
    type_in(shell, f"{ingest.partition('#')[0]} {base} > account.txt")
    account = (shell / "account.txt").read_text()
    assert f"12 traces: 12 rollouts of {len(texts)} examples" in account
    snapshot = shell / account.split("Snapshot: ")[1].split()[0]
    type_in(shell, f"{run.replace('SNAPSHOT', str(snapshot))} {tiny}")
    trained = artifact(shell / "runs" / "own", "train").manifest.metrics
    assert trained["sources"]["ingest:otlp_json"]["members"] > 0


def test_what_traces_hold_of_people_is_taken_out_and_a_trace_is_forgotten(
    shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = unpack(shell, "own")
    shown = next(block for block in re.findall(r"```toml\n(.*?)```", README, re.DOTALL) if "[ingest.redact]" in block)
    private = "".join(line for line in shown.splitlines(keepends=True) if not line.startswith("entities"))
    assert set(tomllib.loads(private)["ingest"]["redact"]) == {"kinds", "patterns"}
    recipe.write_text(f"{recipe.read_text()}\n{private}")
    monkeypatch.setenv("OUR_SECRET", "abc")
    text = next(line.split(",")[0] for line in (recipe.parent / "examples.csv").read_text().splitlines()[1:])
    for name, numbers in (("old.jsonl", range(1, 7)), ("new.jsonl", range(6, 9))):
        mail = "ada@example.org about ORD-12345678"
        export([span for n in numbers for span in _logged(n, f"{text} {n % 2} {mail}")], shell / name)
    base = " ".join(TINY)
    first = "mmgrpo ingest own/recipe.toml old.jsonl"
    type_in(shell, f"{first} {base} > account.txt")
    snapshot = (shell / "account.txt").read_text().split("Snapshot: ")[1].split()[0]
    type_in(shell, f"mmgrpo run own/recipe.toml --run-dir runs/own --iterations 1 {' '.join((*TINY, *SMALL, *QUICK))}")

    block = next(block for block in SHELL if "mmgrpo forget" in block)
    onto, *others = (line.partition("#")[0] for line in block.replace("SNAPSHOT", snapshot).splitlines())
    type_in(shell, f"{onto} {base} > account.txt")
    account = (shell / "account.txt").read_text()
    assert "onto its parent" in account
    assert "EMAIL 8" in account.replace(",", "").split("values taken out: ")[1]
    child = account.split("Snapshot: ")[1].split()[0]
    type_in(shell, "\n".join(others).replace("CHILD", child).replace("ID", f"{7:032x}"))
    assert {path.name for path in (shell / "folder").iterdir()} >= {"README.md"}
    kept = b"".join(path.read_bytes() for path in (shell / "snapshots").rglob("*") if path.is_file())
    assert b"ada@example.org" not in kept
    assert f"{7:032x}".encode() not in kept


def test_the_ingest_section_shown_is_one() -> None:
    shown = next(
        block for block in re.findall(r"```toml\n(.*?)```", README, re.DOTALL) if "[[ingest.modules]]" in block
    )
    section = IngestSection.model_validate(tomllib.loads(shown)["ingest"])
    assert section.modules[0].module == "find_topic"


def test_the_prices_shown_are_such() -> None:
    shown = tomllib.loads(FILES["prices"])["prices"]
    assert PricesSection.model_validate(shown).lms["judge"].output == 0.6


def _logged(number: int, text: str) -> list[dict[str, Any]]:
    root, call = trace(number, text, "rye", None)
    root["attributes"] = [attribute("input.value", {"text": text}), attribute("openinference.span.kind", "CHAIN")]
    second = {**call, "spanId": f"{1000 + number:016x}", "startTimeUnixNano": str(int(call["startTimeUnixNano"]) + 9)}
    for span, module in ((call, "find_topic"), (second, "write_line")):
        kept = [item for item in span["attributes"] if item["key"] != "mmgrpo.module"]
        span["attributes"] = [*kept, attribute("mmgrpo.module", module)]
    return [root, call, second]


def test_the_dspy_optimizer(tmp_path: Path) -> None:
    unpack(tmp_path, "optimizer")
    script = tmp_path / "optimizer" / "optimize.py"
    tiny = '"model": {"base": "tiny-random", "dtype": "float32", "context": 2048}, "adapter": {"r": 2}'
    code = script.read_text().replace('"model": {"base": "smollm2-135m-instruct"}', tiny)
    plain = "from stages.programs.plain_adapter import PlainAdapter\n\ndspy.configure(adapter=PlainAdapter(), "
    script.write_text(code.replace("dspy.configure(", plain))  # a random model follows no markers
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()
    assert artifact(tmp_path / "runs" / "qa", "rollout").manifest.metrics["rollouts"] == 24
    assert mmgrpo("verify", tmp_path / "runs" / "qa") == 0


def test_a_program_that_captures_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = unpack(tmp_path, "own")
    script = unpack(tmp_path, "production").parent / "app.py"
    sampler = TinySampler()
    server = ChatServer(sampler)
    code = script.read_text().replace("http://localhost:8000/v1", server.url)
    script.write_text(code.replace('POLICY = "…"', f'POLICY = "{sampler.policy}"'))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    server.close()
    assert done.returncode == 0, done.stderr[-2000:]
    options = ("--snapshots", tmp_path / "snapshots", "--exec", "progress=off", "--set", "model.base=tiny-random")
    assert mmgrpo("ingest", recipe, tmp_path / "traces", *options) == 0
    said = capsys.readouterr().out
    assert "2 traces: 2 rollouts of 2 examples" in said
    assert "calls by module: find_topic 2, write_line 2" in said
    assert "calls by fidelity: exact 4" in said


def test_bring_your_own_dspy_program(tmp_path: Path) -> None:
    recipe = unpack(tmp_path, "dspy")
    retries = ("--set", "rollout.parse_retries=0", "--set", "evaluate.parse_retries=0", "--set", "model.context=2048")
    assert (
        mmgrpo("run", recipe, "--run-dir", tmp_path / "run", "--iterations", "1", *TINY, *SMALL, *QUICK, *retries) == 0
    )
    # A random model never writes DSPy's field markers: every run fails to parse, and that is what is recorded.
    assert artifact(tmp_path / "run", "rollout").manifest.metrics["statuses"] == {"parse_failed": 6}
