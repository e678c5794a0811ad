"""Runs to browse: made-up ones, with text that means harm, and with the ids of a real tokenizer."""

from __future__ import annotations

from pathlib import Path

from pipeline.reporting.opened import OpenRun, open_run
from schemas.canonical import canonical_json
from stages.engines.digests import tokenizer_digest
from stages.engines.files import cache_folder
from stages.engines.tiny import tiny_folder
from tests.test_pipeline.report_run import EVIL, Rows

HARM = f"</script><!--<script>{EVIL}]]>\u2028\u2029\x1b[31mred\x07 &lt;b&gt; </textarea></title>"
"""What would end or open elements, run scripts, or colour a terminal, if it were not kept from it."""


def opened(folder: Path) -> OpenRun:
    return open_run(folder)


def harm(rollouts: Rows, calls: Rows) -> None:
    """Put `HARM` wherever a model, a program or a user can write to."""
    for rollout in rollouts:
        rollout["output"] = canonical_json({HARM: HARM})
        rollout["error"] = HARM if rollout["status"] != "ok" else None
        rollout["reward_parts"] = canonical_json({HARM: 0.5})
    for call in calls:
        call["completion"] = f"{HARM} {'x' * 900}"
        call["messages"] = canonical_json([{"role": HARM, "content": f"{HARM}{'y' * 700}"}])
        call["module"] = f"{HARM}.{'z' * 60}.{call['module']}"
        call["lm"] = HARM


def with_tokens(calls: Rows) -> None:
    """Completions as tokens of the tiny model's tokenizer: one a character."""
    from tokenizers import Tokenizer

    folder = tiny_folder(cache_folder(None), 0)
    tokenizer, digest = Tokenizer.from_file(str(folder / "tokenizer.json")), tokenizer_digest(folder)
    for call in calls:
        ids = tokenizer.encode(call["completion"], add_special_tokens=False).ids
        call["tokenizer"], call["completion_ids"] = digest, ids
        call["sampling_logprobs"] = [-0.05 - 1.5 * (place % 4) for place in range(len(ids))]
