"""`mmgrpo export adapter`: what leaves a run is what was trained, with a card that says where it came from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.runfile import write_run
from pipeline.tainted import Tainted, mark
from schemas.canonical import digest, digest_file
from stages.engines.adapters import BASE, CONFIG, WEIGHTS, adapter_digest, check_adapter, read_adapters
from stages.engines.interface import Adapter
from stages.engines.models import resolve_base
from stages.engines.transformers_engine import TransformersEngine
from tests.test_e2e.export_kit import PROMPTS, alone, drawn, logits, model_of, with_peft, worst_difference
from tests.test_e2e.kit import TINY, artifact, mmgrpo, state

QUIET = ("--exec", "progress=off")
BRIEF = ("--iterations", "1", "--set", "run.evaluate_every=0", *QUIET)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One iteration, scored on both splits."""
    folder = tmp_path_factory.mktemp("export") / "run"
    assert mmgrpo("run", TINY, "--run-dir", folder, "--iterations", "1", *QUIET) == 0
    assert mmgrpo("evaluate", TINY, "--test", "--run-dir", folder, "--set", "run.iterations=1", *QUIET) == 0
    return folder


@pytest.fixture(scope="module")
def adapter(run: Path) -> Path:
    target = run.parent / "adapter"
    assert mmgrpo("export", "adapter", run, target, "--policy", "newest") == 0
    return target


@pytest.fixture(scope="module")
def merged(run: Path) -> Path:
    target = run.parent / "merged"
    assert mmgrpo("export", "adapter", run, target, "--policy", state(run).policies[1][:10], "--merged") == 0
    return target


@pytest.fixture(scope="module")
def each(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with an adapter for each module."""
    folder = tmp_path_factory.mktemp("each") / "run"
    assert mmgrpo("run", TINY, "--run-dir", folder, "--set", "adapter.modules=each", *BRIEF) == 0
    return folder


def tiny_base(run: Path) -> Any:
    return resolve_base("tiny-random", run)


def test_the_adapter_is_the_run_own_byte_for_byte(run: Path, adapter: Path) -> None:
    own = artifact(run, "train").path / "adapter"
    for name in (CONFIG, WEIGHTS, BASE):
        assert (adapter / name).read_bytes() == (own / name).read_bytes()
    told = json.loads((adapter / "provenance.json").read_text())
    assert told["adapters"] == {"*": adapter_digest(adapter)}


def test_peft_computes_what_the_run_own_policy_does(run: Path, adapter: Path) -> None:
    base = tiny_base(run)
    model, own = with_peft(base.path, adapter), with_peft(base.path, artifact(run, "train").path / "adapter")
    untrained = alone(base.path)
    for prompt in PROMPTS:
        assert torch.equal(logits(model, prompt), logits(own, prompt))
        assert not torch.allclose(logits(model, prompt), logits(untrained, prompt), atol=1e-3)
    engine = TransformersEngine(base, "float32", 128)
    policy = artifact(run, "train").path / "adapter"
    assert worst_difference(model, drawn(engine, Adapter(policy, adapter_digest(policy)))) < 1e-4


def test_merged_weights_load_alone_and_compute_the_same(run: Path, adapter: Path, merged: Path) -> None:
    model, whole = with_peft(tiny_base(run).path, adapter), alone(merged)
    for prompt in PROMPTS:
        torch.testing.assert_close(logits(whole, prompt), logits(model, prompt), atol=1e-4, rtol=1e-4)
    found, base = model_of(merged), tiny_base(run)
    assert (found.tokenizer, found.template) == (base.tokenizer, base.template)
    assert found.weights != base.weights
    assert not (merged / CONFIG).exists()
    assert (merged / "model.safetensors").is_file()


def test_provenance_leads_back_to_the_examples(run: Path, adapter: Path) -> None:
    told = json.loads((adapter / "provenance.json").read_text())
    assert told.pop("digest") == digest(told)
    assert told["policy"] == state(run).policies[1]
    base = tiny_base(run)
    assert told["base"] == {
        "base": base.digest, "weights": base.weights, "tokenizer": base.tokenizer, "template": base.template,
    }  # fmt: skip
    assert told["files"] == {
        path.name: digest_file(path) for path in adapter.iterdir() if path.name not in ("provenance.json", "README.md")
    }
    links = {link["digest"]: link for link in told["chain"]}
    reached, waiting = set[str](), [told["train"]]
    while waiting:
        name = waiting.pop()
        if name in links and name not in reached:
            reached.add(name)
            waiting += links[name]["inputs"].values()
    assert {links[name]["stage"] for name in reached} >= {"examples", "program", "base", "rollout", "group", "train"}
    assert {link["stage"] for link in told["chain"]} >= {"evaluate"}


def test_the_card_says_what_is_known_and_no_more(run: Path, adapter: Path, merged: Path) -> None:
    text = (adapter / "README.md").read_text()
    front, body = text.split("---\n", 2)[1:]
    assert 'base_model: "tiny-random"' in front
    assert "library_name: peft" in front
    assert "library_name: transformers" in (merged / "README.md").read_text()
    examples = artifact_of_setup(run)
    for known in (state(run).policies[1], examples, artifact(run, "rollout").digest, "`dev` 8, `test` 8, `train` 16"):
        assert known in body
    assert "The test split was opened once." in body
    assert "One run with one seed (0)" in body
    assert "is few" in body
    assert str(run) not in text


def artifact_of_setup(run: Path) -> str:
    from pipeline.store import Store

    return Store(run / "artifacts").open("examples", state(run).setup["examples"]).digest


def test_no_completion_and_no_error_of_the_run_is_in_the_folder(run: Path, adapter: Path) -> None:
    import polars as pl

    calls = pl.read_parquet(artifact(run, "rollout").file("invocations.parquet"))
    rollouts = pl.read_parquet(artifact(run, "rollout").file("rollouts.parquet"))
    said = [text for text in [*calls["completion"], *rollouts["output"], *rollouts["error"]] if text and len(text) > 8]
    assert len(said) > 20
    whole = "".join(path.read_text() for path in adapter.iterdir() if path.suffix in {".md", ".json", ".toml"})
    assert not [text for text in said if text in whole]


def test_an_adapter_on_another_base_is_refused_by_its_base_digest(run: Path, adapter: Path, tmp_path: Path) -> None:
    from schemas.errors import DataError

    check_adapter(adapter, tiny_base(run))
    with pytest.raises(DataError, match="was trained on the base"):
        check_adapter(adapter, resolve_base("tiny-random:1", tmp_path))


def test_merging_into_another_base_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--policy", "newest", "--merged", "--base", "tiny-random:1")
    assert mmgrpo("export", "adapter", run, tmp_path / "out", *options) == 3
    assert "the adapter was trained on" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_adapters_of_modules_have_a_folder_each_and_are_not_merged(
    each: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "adapters"
    assert mmgrpo("export", "adapter", each, target, "--policy", "newest") == 0
    own = read_adapters(artifact(each, "train").path)
    assert json.loads((target / "modules.json").read_text()) == own.names
    assert len(own.folders) == 2
    for name, folder in own.folders.items():
        assert adapter_digest(target / name) == adapter_digest(folder)
    card = (target / "README.md").read_text()
    assert all(f"`{name}`" in card for name in own.names)
    assert mmgrpo("export", "adapter", each, tmp_path / "merged", "--policy", "newest", "--merged") == 2
    assert "Export without --merged" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["adapters"]


def test_without_a_release_a_policy_must_be_named(
    each: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mmgrpo("export", "adapter", each, tmp_path / "out") == 2
    told = capsys.readouterr().err
    assert "no adapter is released" in told
    assert "--policy newest" in told
    assert "mmgrpo release" in told


def test_what_is_released_is_what_leaves_and_the_card_has_the_decision(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    reason = "we *want* it | <b>now</b>"
    assert mmgrpo("release", copy, "--policy", state(copy).policies[1], "--force", "--reason", reason) == 0
    assert mmgrpo("export", "adapter", copy, tmp_path / "out") == 0
    told = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert told["policy"] == state(copy).policies[1]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "release, forced" in card
    assert "we \\*want\\* it \\| \\<b\\>now\\</b\\>" in card


def test_what_is_released_of_earlier_settings_is_told_with_the_place_of_its_adapter(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    base, trained = state(copy).policies
    assert mmgrpo("release", copy, "--policy", trained, "--force", "--reason", "to be shipped") == 0
    write_run(copy, state(copy).model_copy(update={"policies": (base, "0" * 64)}))
    assert mmgrpo("export", "adapter", copy, tmp_path / "out") == 2
    told = capsys.readouterr().err
    assert f"policy {trained[:12]}, which is released, was made with other settings" in told
    assert str(artifact(copy, "train").path) in told


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--policy", "feed"), 2, "is none of them"),
        (("--policy", ""), 2, "fits 2 of them"),
        (("--policy", "newest", "--iteration", "1"), 2, "--iteration does not go with `mmgrpo export adapter`"),
        (("--policy", "newest", "--merged", "--base", "/nowhere"), 2, "--base"),
    ],
)
def test_what_cannot_be_exported_is_refused_and_leaves_nothing(
    run: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mmgrpo("export", "adapter", run, tmp_path / "out", *arguments) == code
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_base_policy_has_no_adapter(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mmgrpo("export", "adapter", run, tmp_path / "out", "--policy", state(run).policies[0]) == 2
    assert "is the base model" in capsys.readouterr().err


def test_a_folder_that_is_there_is_left_alone(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert mmgrpo("export", "adapter", run, tmp_path / "out", "--policy", "newest") == 2
    assert not list((tmp_path / "out").iterdir())


def test_an_adapter_with_a_flipped_byte_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    file = artifact(copy, "train").path / "adapter" / WEIGHTS
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert mmgrpo("export", "adapter", copy, tmp_path / "out", "--policy", "newest") == 3
    assert WEIGHTS in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_learnt_from_forgotten_traces_does_not_leave(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    policy = state(copy).policies[1]
    at = "2026-01-01T00:00:00+00:00"
    mark(copy, Tainted(traces=("t",), artifacts=(), policies=(policy,), clean=None, successor=None, at=at))
    assert mmgrpo("export", "adapter", copy, tmp_path / "out", "--policy", "newest") == 3
    assert "were to be forgotten" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
