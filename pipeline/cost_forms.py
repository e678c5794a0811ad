"""The ledger in other forms: rows for a terminal, JSON, CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from typing import Any

from pipeline.costing import Spent
from pipeline.costs import Ledger, Row
from pipeline.reporting.text import ABSENT, duration, plural
from pipeline.texttable import table
from schemas.visible import plain

FORMAT = 1
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet takes for the beginning of a formula."""


def as_text(ledger: Ledger) -> str:
    """The ledger as a table, and what to know of it."""
    rows = [_shown(row) for row in (*ledger.rows, *ledger.iterations)]
    rows.append(_shown(ledger.total) | {"iteration": "all"})
    priced = f"money ({ledger.currency})"
    lines = [table([{(priced if name == "money" else name): value for name, value in row.items()} for row in rows]), ""]
    for name, tokens in ledger.total.spent.lms.items():
        untold = f", and {plural(tokens.untold_calls, 'call')} of unknown size" if tokens.untold_calls else ""
        lines.append(
            f"{name}: {plural(tokens.calls, 'call')}, {tokens.prompt_tokens:,} prompt tokens, "
            f"{tokens.completion_tokens:,} completion tokens{untold}"
        )
    return "\n".join([*lines, *notes(ledger)])


def notes(ledger: Ledger) -> list[str]:
    """What to know of a ledger, in sentences."""
    told: list[str] = []
    if shared := ledger.total.shared:
        own = "not known" if ledger.own.money is None else f"{money(ledger.own.money)} {ledger.currency}"
        told.append(
            f"{plural(shared, 'artifact')} {'was made for another run' if shared == 1 else 'were made for other runs'} "
            "of the same store; without that: "
            f"{duration(ledger.own.seconds)} by the clock, money {own}."
        )
    if ledger.unused is not None and ledger.unused.seconds:
        told.append(
            f"Not in the table: {duration(ledger.unused.seconds)} for artifacts that the run does not use (any more)."
        )
    if ledger.total.spent.unpriced:
        told.append(f"The money is not known, for want of: {'; '.join(ledger.total.spent.unpriced)}.")
    return told


def money(value: float | None) -> str:
    """An amount, with as many decimals as a small one needs."""
    if value is None:
        return ABSENT
    return f"{value:,.2f}" if value >= 10 or value == 0 else f"{value:.4g}"


def as_json(ledger: Ledger) -> str:
    """The ledger as JSON. What is not known is null."""
    document = {
        "format": FORMAT,
        "name": ledger.name,
        "currency": ledger.currency,
        "rows": [_named(row) for row in ledger.rows],
        "iterations": [_named(row) for row in ledger.iterations],
        "stages": [_named(row) for row in ledger.stages],
        "total": _named(ledger.total),
        "own": _plain(ledger.own),
        "unused": None if ledger.unused is None else _plain(ledger.unused),
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def as_csv(ledger: Ledger) -> str:
    """The rows as CSV, safe to open in a spreadsheet. What is not known is empty."""
    lms = sorted(ledger.total.spent.lms)
    rows = [_flat(row, ledger.currency, lms) for row in ledger.rows]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([_inert(name) for name in (rows[0] if rows else {})])
    writer.writerows([_inert(value) for value in row.values()] for row in rows)
    return file.getvalue()


def _inert(value: Any) -> Any:
    """Text on one line that a spreadsheet does not take for a formula."""
    if isinstance(value, str):
        text = " ".join(plain(value).split())
        return f"'{text}" if text.startswith(_FORMULA) else text
    return "" if value is None else value


def _flat(row: Row, currency: str, lms: list[str]) -> dict[str, Any]:
    flat = _named(row)
    by_lm = flat.pop("lms")
    flat |= {"devices": "; ".join(flat["devices"]), "unpriced": "; ".join(flat["unpriced"]), "currency": currency}
    for name in lms:
        told = by_lm.get(name, {})
        flat |= {f"{name} {figure}": told.get(figure, 0) for figure in ("calls", "prompt_tokens", "completion_tokens")}
    return flat


def _named(row: Row) -> dict[str, Any]:
    place = {name: getattr(row, name) for name in ("iteration", "stage", "artifacts", "shared", "silent")}
    return place | _plain(row.spent)


def _plain(spent: Spent) -> dict[str, Any]:
    return dataclasses.asdict(spent)


def _shown(row: Row) -> dict[str, Any]:
    spent = row.spent
    return {
        "iteration": "before" if row.iteration is None else str(row.iteration),
        "stage": row.stage or "all",
        "seconds": spent.seconds,
        "core_seconds": spent.core_seconds,
        "gpu_seconds": spent.gpu_seconds,
        "device": ", ".join(spent.devices) or None,
        "prompt_tokens": spent.prompt_tokens,
        "completion_tokens": spent.completion_tokens,
        "trained_tokens": spent.trained_tokens,
        "money": None if spent.money is None else money(spent.money),
    }
