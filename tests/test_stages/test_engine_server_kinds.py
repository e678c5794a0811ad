"""What servers differ in: what they give of a completion, which adapters they take, and what is refused of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import RecipeError, StageError
from schemas.execution import ServerSection
from stages.engines.interface import Adapter, Request, Sampling
from stages.engines.models import BaseModel
from stages.engines.server_adapters import served_name
from tests.test_stages.engines_kit import chat, make_adapter, tiny
from tests.test_stages.programs_kit import run_one
from tests.test_stages.server_kit import KitServer, engine_over, servers

TEN = Sampling(max_new_tokens=10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("base")


@pytest.fixture(scope="module")
def base(folder: Path) -> BaseModel:
    return tiny(folder)


@pytest.fixture(scope="module")
def adapters(base: BaseModel, folder: Path) -> tuple[Adapter, Adapter]:
    return make_adapter(base, folder / "a", 1), make_adapter(base, folder / "b", 2)


@pytest.fixture
def start(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., KitServer]]:
    yield from servers(base, monkeypatch)


def row_of(engine: Any, **session: Any) -> dict[str, Any]:
    """The row of one call."""
    finished = run_one(lambda inputs, call: call("m", chat("hello")).text, engine, sampling=TEN, **session)
    assert finished.outcome.status == "ok", finished.outcome
    return finished.invocations[0]


def test_ids_and_logprobs_make_exact_rows(start: Callable[..., KitServer]):
    row = row_of(engine_over(start()))
    assert (row["engine"], row["logprob_kind"], row["fidelity"]) == (
        "server/vllm-0.32.0-0badcafe",
        "processed",
        "exact",
    )
    assert len(row["sampling_logprobs"]) == len(row["completion_ids"])


def test_the_version_names_a_server_without_a_fingerprint(start: Callable[..., KitServer]):
    assert engine_over(start(fingerprint=None)).name == "server/vllm-0.32.0"


def test_log_probabilities_before_temperature_are_called_raw(start: Callable[..., KitServer], caplog: Any):
    engine = engine_over(start(kind="raw"))
    assert row_of(engine)["logprob_kind"] == "raw"
    assert "--logprobs-mode processed_logprobs" in caplog.text


def test_log_probabilities_of_neither_kind_are_left_out(start: Callable[..., KitServer], caplog: Any):
    row = row_of(engine_over(start(kind="tempered")))
    assert (row["logprob_kind"], row["sampling_logprobs"], row["fidelity"]) == (None, None, "ids")
    assert row["completion_ids"]
    assert row["engine"].endswith("/ids")
    assert "left out" in caplog.text


def test_ids_without_logprobs_are_marked_ids(start: Callable[..., KitServer]):
    row = row_of(engine_over(start(logprobs=False)))
    assert (row["logprob_kind"], row["sampling_logprobs"], row["fidelity"]) == (None, None, "ids")


def test_a_server_of_text_makes_text_rows_in_the_bases_tokens(start: Callable[..., KitServer], caplog: Any):
    server = start(ids=False, fingerprint=None, tokenize=None)
    engine = engine_over(server)
    row = row_of(engine)
    assert (row["engine"], row["logprob_kind"], row["fidelity"]) == ("server/tiny/text", None, "text")
    assert row["sampling_logprobs"] is None
    assert row["prompt_ids"] == list(engine.encode_chat(chat("hello")))
    assert server.tokenizer.decode(row["completion_ids"], skip_special_tokens=True) == row["completion"]
    assert "text alone" in caplog.text
    sent = [body for path, body in server.seen if path == "/v1/chat/completions"][-1]
    assert sent["messages"] == chat("hello")
    assert "top_k" not in sent
    with pytest.raises(RecipeError, match="has no top_k"):
        engine.generate([Request((1, 2), Sampling(top_k=3), 1, None, chat("hello"))])


def test_a_server_without_a_list_needs_the_models_name(start: Callable[..., KitServer]):
    server = start(ids=False, listed=False)
    with pytest.raises(RecipeError, match=r"server\.model"):
        engine_over(server)
    assert engine_over(server, model="tiny").generate([Request((1, 2), TEN, 1, None, chat("hello"))])[0].text


def test_a_server_of_another_base_is_refused(start: Callable[..., KitServer]):
    with pytest.raises(RecipeError, match="other tokens"):
        engine_over(start(tokenize=lambda ids: [token + 1 for token in ids]))
    with pytest.raises(RecipeError, match=r"takes 64 tokens.*--max-model-len 1024"):
        engine_over(start(max_model_len=64), context=1024)
    with pytest.raises(RecipeError, match="serves no model 'other', but tiny"):
        engine_over(start(), model="other")


def test_servers_that_differ_in_what_rows_say_are_refused(start: Callable[..., KitServer]):
    with pytest.raises(StageError, match="start all servers alike"):
        engine_over(start(), start(kind="raw"))
    with pytest.raises(StageError, match="start all servers alike"):
        engine_over(start(), start(ids=False))
    both = engine_over(start(), start(fingerprint="vllm-0.32.0-tp2-1234"))
    assert both.name == "server/vllm-0.32.0-0badcafe+vllm-0.32.0-tp2-1234"


def test_a_replica_that_comes_back_as_another_is_refused(start: Callable[..., KitServer]):
    server = start()
    engine = engine_over(server)
    server.die()
    server.dialect.fingerprint = "vllm-0.33.0-ffffffff"
    server.revive()
    server.faults = []
    engine._replicas[0].forget()  # as when its circuit opened
    with pytest.raises(StageError, match=r"vllm-0\.33\.0-ffffffff"):
        engine.generate([Request(engine.encode_chat(chat("hello")), TEN, 1)])


def test_adapters_are_loaded_once_on_each_replica_and_unloaded_when_not_expected(
    start: Callable[..., KitServer], adapters: tuple[Adapter, Adapter]
):
    one, other = start(), start()
    engine = engine_over(one, other, requests=2)
    prompt = engine.encode_chat(chat("hello"))
    engine.expect({adapters[0].digest})
    engine.generate([Request(prompt, TEN, seed, adapters[0]) for seed in range(12)])
    for server in (one, other):
        assert list(server.adapters) == [served_name(adapters[0].digest)]
        assert sum(path == "/v1/load_lora_adapter" for path, _ in server.seen) == 1
    engine.expect({adapters[1].digest})
    engine.generate([Request(prompt, TEN, seed, adapters[1]) for seed in range(12)])
    for server in (one, other):
        assert list(server.adapters) == [served_name(adapters[1].digest)]


def test_an_adapter_that_the_server_has_already_is_not_loaded(
    start: Callable[..., KitServer], adapters: tuple[Adapter, Adapter]
):
    server = start(loading=False)
    server.adapters[served_name(adapters[0].digest)] = adapters[0]
    engine = engine_over(server)
    request = Request(engine.encode_chat(chat("hello")), TEN, 1, adapters[0])
    assert engine.generate([request])[0].completion_ids
    with pytest.raises(RecipeError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        engine.generate([Request(request.prompt_ids, TEN, 1, adapters[1])])


def test_an_adapter_that_the_server_lost_is_loaded_again(
    start: Callable[..., KitServer], adapters: tuple[Adapter, Adapter]
):
    server = start()
    engine = engine_over(server)
    requests = [Request(engine.encode_chat(chat("hello")), TEN, 1, adapters[0])]
    first = engine.generate(requests)
    server.die()
    server.revive()
    again = engine.generate(requests)
    assert [one.completion_ids for one in again] == [one.completion_ids for one in first]
    assert server.adapters


def test_a_folder_that_the_server_does_not_see_is_named_with_the_setting(
    start: Callable[..., KitServer], adapters: tuple[Adapter, Adapter]
):
    there = f"/mnt/there/{adapters[0].path.name}"
    server = start(root="/mnt/there", moves={there: str(adapters[0].path)})
    engine = engine_over(server)
    request = Request(engine.encode_chat(chat("hello")), TEN, 1, adapters[0])
    with pytest.raises(RecipeError, match=r"does not see the adapter folder .*server\.adapters"):
        engine.generate([request])
    mapped = engine_over(server, adapters=f"{adapters[0].path.parent}=/mnt/there")
    assert mapped.generate([request])[0].completion_ids
    assert [body["lora_path"] for path, body in server.seen if "load_lora" in path][-1] == there


def test_an_adapter_of_too_high_a_rank_is_told_with_what_to_start(
    start: Callable[..., KitServer], adapters: tuple[Adapter, Adapter]
):
    engine = engine_over(start(rank=2))
    with pytest.raises(RecipeError, match=r"rank 4 is greater than max_lora_rank 2.*mmgrpo serve"):
        engine.generate([Request(engine.encode_chat(chat("hello")), TEN, 1, adapters[0])])


def test_the_row_names_the_adapter_that_was_served(start: Callable[..., KitServer], adapters: tuple[Adapter, Adapter]):
    server = start()
    row = row_of(engine_over(server), adapters={"*": adapters[1]})
    assert row["adapter"] == adapters[1].digest
    assert [body["model"] for body in server.completions()] == [served_name(adapters[1].digest)]


@pytest.mark.parametrize("url", ["http://me:secret@host/v1", "http://host/v1?key=secret", "host:8000", "ftp://host"])
def test_urls_that_would_be_logged_with_a_secret_are_refused(url: str):
    with pytest.raises(ValueError, match=r"server\.api_key_env|expected URLs"):
        ServerSection(urls=(url,))
