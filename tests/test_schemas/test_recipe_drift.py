"""The drift sections that the README shows are such, and name every limit that there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from schemas.recipe_drift import CanariesSection, DriftSection

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def test_the_sections_shown_are_valid_and_every_limit_is_named_there() -> None:
    (shown,) = [block for block in re.findall(r"```toml\n(.*?)```", README, re.DOTALL) if "[drift]" in block]
    document = tomllib.loads(shown)
    assert CanariesSection.model_validate(document["canaries"]).max_new_tokens == CanariesSection().max_new_tokens
    assert set(DriftSection.model_validate(document["drift"]).set_ones) == set(document["drift"])
    assert [name for name in DriftSection.model_fields if name not in shown] == []
