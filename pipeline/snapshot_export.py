"""A snapshot as a Hugging Face dataset folder: its tables as they are, and a card."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from schemas.canonical import digest
from schemas.errors import RecipeError
from stages.contract import Artifact

CARD = "README.md"


def export_snapshot(snapshot: Artifact, folder: Path) -> dict[str, int]:
    """Write the dataset folder. Returns rows by table.

    Raises:
        RecipeError: when the folder is there already.
    """
    if folder.exists():
        raise RecipeError(f"{folder} exists already: give another name")
    tables = {entry.table or name: name for name, entry in snapshot.manifest.files.items() if entry.table}
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        (draft / "data").mkdir(parents=True)
        for name in tables.values():
            (draft / "data" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(snapshot.file(name), draft / "data" / name)
        (draft / CARD).write_text(card(snapshot, tables), encoding="utf-8")
        draft.replace(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return {table: snapshot.manifest.files[name].rows or 0 for table, name in tables.items()}


def card(snapshot: Artifact, tables: dict[str, str]) -> str:
    """The card: what the tables are, how far they can be trusted, and where they come from.

    Args:
        snapshot: what is described.
        tables: file names by table.
    """
    manifest, figures = snapshot.manifest, snapshot.manifest.metrics
    rows = {table: manifest.files[name].rows or 0 for table, name in tables.items()}
    redact = manifest.payload["recipe"]["ingest"]["redact"]
    taken = [name for name in ("kinds", "patterns", "entities") if redact[name]]
    lines = ["---", "license: other", "license_name: unknown", "tags:", "- mmgrpo", "- lm-traces", "configs:"]
    filled = [table for table in tables if rows[table]]  # `datasets` has no form for a table without rows
    for table in sorted(filled, key=lambda name: (name != "invocations", name)):
        default = ["  default: true"] if table == "invocations" else []
        lines += [f"- config_name: {table}", *default, "  data_files:", "  - split: train"]
        lines += [f"    path: {json.dumps(f'data/{tables[table]}')}"]
    lines += [
        "---",
        "",
        "# Traces of a program of LM calls",
        "",
        f"{figures['traces']} logged traces as {figures['rollouts']} rollouts of {figures['examples']} examples, "
        f"{figures['examples_with_siblings']} of them with two or more.",
        "Every table is one split, `train`; the column `split` of `examples` says which are held out.",
        "",
        "| table | rows | what a row is |",
        "|---|---|---|",
        *(f"| `{table}` | {rows[table]} | {_ROWS.get(table, '')} |" for table in sorted(tables)),
        "",
        "## Fidelity of the calls",
        "",
        "`exact`: token ids, log-probabilities and the policy as logged; `ids`: token ids as logged; `text`: tokens "
        "made from the text; `partial`: for reading only.",
        "",
        *_counts("tier", figures["fidelity"]),
        *_counts("why not exact", figures["fidelity_reasons"]),
        *_counts("traces left out", figures["left_out_traces"]),
        *_counts("calls left out", figures["left_out_calls"]),
        *_counts("rollouts without a reward", figures["no_reward"]),
        "## Where it comes from",
        "",
        f"- snapshot: `{snapshot.digest}`",
        f"- recipe: `{digest(manifest.payload['recipe'])}`",
        *([f"- parent: `{parent}`"] if (parent := manifest.payload["params"].get("parent")) else []),
        f"- taken out before anything was written: {', '.join(taken) or 'nothing; it holds what was logged'}",
        "- licence: unknown. It is that of the logs and of what their users wrote",
        "",
    ]
    return "\n".join(lines)


def _counts(what: str, counts: dict[str, int]) -> list[str]:
    if not counts:
        return []
    return [f"| {what} | count |", "|---|---|", *(f"| `{name}` | {count} |" for name, count in counts.items()), ""]


_ROWS = {
    "examples": "an input of the program",
    "rollouts": "a run of the program, with its reward",
    "invocations": "an LM call of a run",
    "traces": "a logged trace, and what became of it",
    "left_out": "a call that is in no run, and why",
}
