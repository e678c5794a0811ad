"""What a recipe takes out of traces is nowhere on the disk, and the rest still trains."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from stages.ingest import spool
from tests.test_e2e.kit import RECIPE, mmgrpo, own_recipe
from tests.test_e2e.test_traces import export, ingest, trace

REDACT = '[ingest.redact]\nkinds = "all"\npatterns = { order = "ORD-[0-9]+" }\n'
SAID = ("anna@example.org", "+1 415 555 2671", "ORD-77")


def personal(folder: Path) -> Path:
    """Traces of which every second one holds personal data."""
    spans = []
    for number in range(1, 7):
        told = f"{SAID[number % 3]} wrote" if number % 2 else f"w{number}"
        spans += trace(number, told, f"to {told}", 0.5)
    export(spans, folder / "spans.json")
    return folder / "spans.json"


def test_nothing_that_is_redacted_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = own_recipe(tmp_path / "a", recipe=RECIPE + REDACT)
    seen: list[bytes] = []
    whole = spool.Spool.traces

    def traces(self: spool.Spool) -> object:
        found = list(whole(self))
        seen.extend(path.read_bytes() for path in self._folder.iterdir())
        return iter(found)

    monkeypatch.setattr(spool.Spool, "traces", traces)
    snapshot = ingest(recipe, personal(tmp_path))
    seen += [path.read_bytes() for path in snapshot.rglob("*") if path.is_file()]
    frames = [pl.read_parquet(path) for path in snapshot.glob("*.parquet")]
    told = b"".join(seen).decode(errors="replace") + "".join(str(frame.to_dicts()) for frame in frames)
    assert "<EMAIL_1>" in told
    assert [value for value in SAID if value in told] == []


def test_redacted_calls_are_text_and_say_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = own_recipe(tmp_path / "a", recipe=RECIPE + REDACT)
    snapshot = ingest(recipe, personal(tmp_path))
    assert "values taken out: EMAIL 1, ORDER 1, PHONE 1" in capsys.readouterr().out
    metrics = json.loads((snapshot / "manifest.json").read_text())["metrics"]
    assert metrics["fidelity_reasons"] == {"no_ids": 3, "redacted": 3}
    inputs = pl.read_parquet(snapshot / "examples.parquet")["inputs"].to_list()
    assert {'{"word":"<EMAIL_1> wrote"}', '{"word":"<PHONE_1> wrote"}', '{"word":"<ORDER_1> wrote"}'} <= set(inputs)
    assert ingest(recipe, personal(tmp_path)) == snapshot


def test_entities_without_presidio_are_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = RECIPE + '[ingest.redact]\nentities = ["PERSON"]\nmodel = "xx_no_such_model"\n'
    recipe = own_recipe(tmp_path / "a", recipe=more)
    assert mmgrpo("ingest", recipe, personal(tmp_path), "--snapshots", tmp_path / "s") == 2
    assert "is not installed" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
