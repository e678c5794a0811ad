"""What is asked of every reader of files that others may have made: it reads them, or an error names the file."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from pipeline.manifests import MANIFEST, check_files, read_manifest
from pipeline.partial import read_sums
from pipeline.recipes import load_execution, load_recipe
from pipeline.release.chain import append, read_chain
from pipeline.release.records import decisions, write
from pipeline.runfile import RunFile, read_run, write_run
from pipeline.study.spec import read_study
from pipeline.tombstones import Tombstone, bury, forgotten_in
from schemas.decisions import Look
from schemas.errors import MmgrpoError
from schemas.parquet import read_table, write_table
from schemas.policies import POLICIES
from schemas.telemetry import read_attempts
from stages.engines.adapters import adapter_digest, check_adapter, read_adapters
from stages.engines.digests import recorded_digests
from stages.engines.models import BaseModel, eos_ids, load_tokenizer, resolve_base
from stages.engines.server_http import Http, Unanswered
from stages.engines.server_probe import Prober
from stages.engines.server_protocol import Reader
from stages.examples import read_examples
from tests.test_e2e.kit import EXAMPLES, ROOT, own_recipe
from tests.test_pipeline.test_store import ROW, make
from tests.test_stages.engines_kit import make_adapter, tiny

Read = Callable[[Path, Path], object]
"""Reads a spoilt file, given a folder for what stands around it."""


@dataclass(frozen=True)
class Record:
    """A kind of file of which every spoilt form is read, or refused by its name."""

    name: str
    """Of the file."""
    seeds: Callable[[Path], list[bytes]]
    """Whole ones, made in a folder."""
    read: Read
    sealed: bool = False
    """Whether it holds its own digest, which who changes it can make again."""

    def judge(self, data: bytes, folder: Path) -> str | None:
        """The error that refuses it; None where it is read. Raises whatever is neither, or does not name the file."""
        path = folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        told = _refusal(lambda: self.read(path, folder))
        assert told is None or Path(self.name).name in told or folder.name in told, told
        return told


def _refusal(read: Callable[[], object]) -> str | None:
    try:
        read()
    except (MmgrpoError, Unanswered) as error:
        return str(error)
    return None


def _manifest(path: Path, folder: Path) -> None:
    manifest = read_manifest(path)
    check_files(path.parent, manifest)


def _decision(path: Path, folder: Path) -> None:
    decisions(folder)


def _seed_manifest(folder: Path) -> list[bytes]:
    return [(make(folder / "seeds").path / MANIFEST).read_bytes()]


def _seed_run(folder: Path) -> list[bytes]:
    write_run(
        folder,
        RunFile(name="n", recipe={"a": {"b": 1.5}}, setup={"base": "0" * 64}, policies=("1" * 64,), tests_opened=1),
    )
    return [(folder / "run.json").read_bytes()]


LOOK = Look(
    at="2026-01-01T00:00:00+00:00", k=1, alpha=0.05, alpha_k=0.03, run="n", split="dev", examples="e", n=3,
    candidate="c", candidate_scores="d", released="b", released_scores="s",
)  # fmt: skip


def _seed_looks(folder: Path) -> list[bytes]:
    path = folder / "seed.jsonl"
    append(path, [append(path, [], LOOK)], LOOK.model_copy(update={"k": 2}))
    return [path.read_bytes()]


def _seed_decision(folder: Path) -> list[bytes]:
    facts = {"kind": "release", "verdict": "kept", "policy": "p", "position": 0, "adapter": None, "prompts": None}
    (folder / "s").mkdir()
    write(folder / "s", [], **facts, scores=None, previous="p", previous_adapter=None, evidence=None, reason="because")
    return [(folder / "s" / "decisions" / "0001.json").read_bytes()]


def _seed_tombstone(folder: Path) -> list[bytes]:
    (folder / "s").mkdir()
    bury(folder / "s", Tombstone(artifact="d", traces=("t",), by="me", at="now", why="asked", successor=None))
    return [(folder / "s" / "tombstone.json").read_bytes()]


def _seed_table(folder: Path) -> list[bytes]:
    write_table([ROW, ROW | {"policy": "q"}], folder / "seed.parquet", POLICIES)
    return [(folder / "seed.parquet").read_bytes()]


def _recipes(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "data").glob("*/recipe*.toml"))]


def _examples(path: Path, folder: Path) -> None:
    loaded = load_recipe(own_recipe(folder / "own"), [f"examples.path={path}"])
    read_examples(loaded.recipe, loaded.root)


def _seed_examples(folder: Path) -> list[bytes]:
    pl.read_csv(EXAMPLES.encode()).write_parquet(folder / "seed.parquet")
    return [(folder / "seed.parquet").read_bytes()]


@cache
def _base(cache_folder: Path) -> BaseModel:
    return tiny(cache_folder)


def _adapter(path: Path, folder: Path) -> None:
    base, whole = _base(CACHE[0]), CACHE[0] / "adapter"
    if not whole.exists():
        make_adapter(base, whole, 1)
    for file in whole.iterdir():
        if not (path.parent / file.name).exists():
            shutil.copy(file, path.parent / file.name)
    adapter_digest(path.parent)
    check_adapter(path.parent, base)


def _seed_adapter(name: str) -> Callable[[Path], list[bytes]]:
    def seeds(folder: Path) -> list[bytes]:
        return [(make_adapter(_base(CACHE[0]), folder / "a", 1).path / name).read_bytes()]

    return seeds


def _modules(path: Path, folder: Path) -> None:
    found = read_adapters(folder)
    assert all(folder in place.resolve().parents for place in found.folders.values()), found


def _model(path: Path, folder: Path) -> None:
    for file in _base(CACHE[0]).path.iterdir():
        if not (folder / file.name).exists():
            shutil.copy(file, folder / file.name)
    base = resolve_base(str(folder), folder, CACHE[0])
    eos_ids(base)


def _seed_model(name: str) -> Callable[[Path], list[bytes]]:
    return lambda folder: [(_base(CACHE[0]).path / name).read_bytes()]


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """A server that answers whatever it is asked with one body."""
    listener = socket.create_server(("127.0.0.1", 0))
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.recv(1 << 16)
                    connection.sendall(head.encode() + body)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _answer(path: Path, folder: Path) -> None:
    base = _base(CACHE[0])
    reader = Reader(load_tokenizer(base), eos_ids(base), 128)
    with answering(path.read_bytes()) as url:

        async def ask() -> None:
            http = Http(url, "secret-key", 5.0, 2)
            try:
                await Prober(reader, "tiny", 64).facts(http, url)
            finally:
                await http.close()

        told = _refusal(lambda: asyncio.run(ask()))
        assert told is None or "secret-key" not in told, told


CHOICE = {
    "index": 0,
    "text": "a",
    "token_ids": [5],
    "prompt_token_ids": None,
    "finish_reason": "length",
    "logprobs": {"token_logprobs": [-0.5], "top_logprobs": [{"token_id:5": -0.5, "token_id:6": -1.5}]},
    "message": {"role": "assistant", "content": "a"},
}
ANSWERS: list[dict[str, Any]] = [
    {
        "object": "list",
        "data": [{"id": "tiny", "max_model_len": 4096}],
        "choices": [CHOICE],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}},
        "system_fingerprint": "vllm-0.32.0",
    },
    {"error": {"message": "no such model", "code": "404"}},
]
CACHE: list[Path] = []
"""The folder for what is made once: set before any of these is used."""

BASE = dict.fromkeys(("base", "weights", "tokenizer", "template"), "0" * 64)
EXECUTION = b'threads = 2\nengine = "server"\n[server]\nurls = ["http://a/v1"]\n'
ATTEMPT = b'{"seconds":1.0,"core_seconds":null,"cores":2,"gpus":0,"device":null,"finished":true}'
LINES = b'{"word": "a", "split": "train"}\n{"word": "b", "split": "dev"}\n'


def _only(*seeds: bytes) -> Callable[[Path], list[bytes]]:
    return lambda folder: list(seeds)


RECORDS = (
    Record("demo/0123456789abcdef/manifest.json", _seed_manifest, _manifest, sealed=True),
    Record("run.json", _seed_run, lambda path, folder: read_run(folder), sealed=True),
    Record("looks.jsonl", _seed_looks, lambda path, folder: read_chain(path, Look), sealed=True),
    Record("decisions/0001.json", _seed_decision, _decision, sealed=True),
    Record("ingest/k/tombstone.json", _seed_tombstone, lambda path, folder: forgotten_in(folder), sealed=True),
    Record("policies.parquet", _seed_table, lambda path, folder: read_table(path, POLICIES)),
    Record("telemetry/telemetry.json", _only(b'{"seconds": 1.5}'), lambda path, folder: read_sums(path)),
    Record("telemetry/attempts/0000.json", _only(ATTEMPT), lambda path, folder: read_attempts(folder)),
    Record("base/base.json", _only(json.dumps(BASE).encode()), lambda path, folder: recorded_digests(path)),
    Record("recipe.toml", _recipes, lambda path, folder: load_recipe(path, [])),
    Record("execution.toml", _only(EXECUTION), lambda path, folder: load_execution(path, [])),
    Record("study.toml", _only((ROOT / "data/study/study.toml").read_bytes()), lambda path, folder: read_study(path)),
    Record("examples.csv", _only(EXAMPLES.encode()), _examples),
    Record("examples.jsonl", _only(LINES), _examples),
    Record("examples.parquet", _seed_examples, _examples),
    Record("adapter/adapter_config.json", _seed_adapter("adapter_config.json"), _adapter),
    Record("adapter/adapter_model.safetensors", _seed_adapter("adapter_model.safetensors"), _adapter),
    Record("adapter/base.json", _seed_adapter("base.json"), _adapter),
    Record("adapters/modules.json", _only(b'{"a": "private", "b": "judge"}'), _modules),
    Record("config.json", _seed_model("config.json"), _model),
    Record("tokenizer_config.json", _seed_model("tokenizer_config.json"), _model),
    Record("generation_config.json", _seed_model("generation_config.json"), _model),
    Record("answer.json", _only(*(json.dumps(answer).encode() for answer in ANSWERS)), _answer),
)
