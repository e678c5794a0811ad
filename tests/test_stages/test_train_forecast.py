"""What is printed before training is what training then computes."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from stages.training import fit, forecast
from tests.test_stages.train_kit import LocalOut, make_calls, run, write_artifacts


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("tokens", [35, 4096])
def test_the_forecast_counts_the_tokens_that_the_steps_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharing: bool, tokens: int
) -> None:
    kept: list[forecast.Forecast] = []
    planned: list[int] = []

    def keep(*arguments: object, **options: object) -> forecast.Forecast:
        kept.append(forecast.forecast(*arguments, **options))
        return kept[-1]

    monkeypatch.setattr(fit, "forecast", keep)
    inputs, _ = write_artifacts(tmp_path, make_calls(), tmp_path / "cache")
    out = LocalOut(tmp_path / "out", lambda done, total, unit: planned.append(total) if "planned" in unit else None)
    run(inputs, tmp_path / "cache", tmp_path, tokens, out, examples_per_step=2, epochs=2, prefix_sharing=sharing)
    steps = pl.read_parquet(out.committed()["steps.parquet"])
    (ahead,) = kept
    assert planned == [ahead.micro_batches]
    assert (ahead.steps, ahead.row_tokens, ahead.forward_tokens) == (
        steps.height,
        steps["row_tokens"].sum(),
        steps["forward_tokens"].sum(),
    )
    assert ahead.micro_batches > steps.height if tokens == 35 else ahead.micro_batches == steps.height
    assert ("sharing" in ahead.figures) == sharing
    if not sharing:
        assert 0 <= 1 - ahead.distinct_tokens / ahead.forward_tokens < 1
