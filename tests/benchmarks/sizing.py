"""What a night of so many rollouts needs, and where the next limit is: sums over rates that were measured or assumed.

`python -m tests.benchmarks.sizing README.md` writes the README's table. Measured are the rates of `data/baselines` and
of the README's "Measured", on two cores with a model of 135M; those of an 8B model on an H100 are `gpu_budget`'s, on
paper. Every stage is taken to grow in proportion.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.gpu_budget import CARDS, EXAMPLES, MODELS, ROLLOUTS, TASKS, seconds

BASELINES = Path(__file__).resolve().parents[2] / "data" / "baselines"
SCALES = (1_000, 100_000, 10_000_000)
"""Rollouts a night, of one call each."""
NIGHT_S = 8 * 3600
BEGIN, END = "<!-- sizing -->\n", "<!-- /sizing -->"
"""Between these the README has the table."""

GROUP_S = 0.69
"""README, Measured: the group stage on 1,000,268 invocations, by the clock on two cores."""
GROUP_INVOCATIONS = 1_000_268
INGEST_CORE_S = 93.0
"""README, Measured: ingest of 1,000,000 spans, five a trace."""
INGEST_TRACES = 200_000
BYTES = 3_000
"""Of a call in the tables, compressed; assumed: ids, log-probabilities and text of 200 tokens, its prompt shared."""


@dataclass(frozen=True)
class Row:
    """One stage: seconds for a rollout, and of what."""

    stage: str
    unit: str
    """`core`: of a core; `machine`: of two cores; `card`: of an H100."""
    each: float
    source: str
    spreads: str
    """Over what it can be spread."""

    def needed(self, rollouts: int) -> str:
        """Hours of the unit, in the words of the table."""
        seconds_ = self.each * rollouts
        if seconds_ < 60:
            return f"{max(seconds_, 1):.0f} s"
        return f"{seconds_ / 60:.0f} min" if seconds_ < 3600 else f"{seconds_ / 3600:,.1f} h"


def rows() -> list[Row]:
    """The stages in order."""
    rollout = json.loads((BASELINES / "rollout.json").read_text())["workloads"]["banking77"]["ours"]
    train = json.loads((BASELINES / "train.json").read_text())["workloads"]["banking77"]["packed"]
    paper, made = seconds(MODELS[0], CARDS[0], TASKS[0]), EXAMPLES * ROLLOUTS
    ours, paper_says = "measured", "assumed"
    return [
        Row("ingest, in the place of sampling", "core", INGEST_CORE_S / INGEST_TRACES, ours, "processes"),
        Row("rollout, 135M", "machine", rollout["seconds"] / rollout["rollouts"], ours, "threads"),
        Row("rollout, 8B: cards", "card", paper.sampling / made, paper_says, "vLLM, replicas of a server"),
        Row(
            "rollout: what DSPy takes of one core", "core", rollout["outside_ms_per_call"] / 1000, ours, "Ray's actors"
        ),
        Row("group", "machine", GROUP_S / GROUP_INVOCATIONS, ours, "threads; ranges of examples, by Ray"),
        Row("logprobs, 8B", "card", paper.scoring / made, paper_says, "nothing: one process"),
        Row("train, 135M", "machine", train["seconds"] / train["rows"], ours, "`train.processes`, `train.nodes`"),
        Row("train, 8B", "card", paper.training / made, paper_says, "`train.processes`, `train.nodes`"),
    ]


def lines() -> Iterator[str]:
    """Rows of the table."""
    yield "| | time of | " + " | ".join(f"{scale:,}" for scale in SCALES) + " | in 8 hours | spreads over | rate |"
    yield "|---|---|" + "---|" * (len(SCALES) + 3)
    unit = {"core": "a core", "machine": "two cores", "card": "an H100"}
    for row in rows():
        hours = " | ".join(row.needed(scale) for scale in SCALES)
        yield (
            f"| {row.stage} | {unit[row.unit]} | {hours} | {_rounded(NIGHT_S / row.each)} | {row.spreads} | "
            f"{row.source} |"
        )
    disk = " | ".join(_bytes(scale * BYTES) for scale in SCALES)
    yield f"| tables on disk | - | {disk} | - | - | assumed |"


def in_readme(readme: str) -> str:
    """The README with the table in its place."""
    place = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    assert len(place.findall(readme)) == 1, f"expected one place between {BEGIN.strip()} and {END.strip()}"
    return place.sub(lambda _: "\n".join([BEGIN.strip(), *lines(), END]), readme)


def _rounded(count: float) -> str:
    if count >= 1e9:
        return f"{count / 1e9:,.0f} billion"
    return f"{count / 1e6:,.1f} M" if count >= 1e6 else f"{count / 1e3:,.0f} k"


def _bytes(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(in_readme(file.read_text()))
