"""PAPILLON's metric: (quality + (1 - leakage)) / 2.

Leakage is the share of the example's private units found in the outgoing request, as whole words of the normalised
text (case, punctuation and white space do not count). Quality has two measures, and `quality` in the recipe's
`metric_args` says which:

- `rouge_l`: ROUGE-L F1 (Lin 2004) of the answer against the reference answer. It needs no LM, and rewards wording.
- `judge`: the recipe's judge (`[metric] lm`) says whether the answer is at least as good as the reference, asked in
  both orders: 1 when it wins first, or when the two verdicts agree only in the position; else 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pipeline.tasks.text import normalise
from schemas.errors import RecipeError

if TYPE_CHECKING:
    from pipeline.tasks.call import Completion, Example

Quality = Literal["rouge_l", "judge"]
Ask = Callable[..., "Completion"]
VERDICT_TOKENS = 8
QUESTION = (
    "A user wrote:\n\n{query}\n\n--- Response A ---\n{first}\n\n--- Response B ---\n{second}\n\n"
    "Is response A at least as good as response B? Answer with yes or no."
)


def metric(
    example: Example,
    output: Mapping[str, str],
    _calls: Sequence[Any],
    *,
    quality: Quality = "rouge_l",
    call: Ask | None = None,
) -> dict[str, float]:
    """Score with the parts `quality`, `leakage` and `leaked` (units that went out).

    Args:
        example: inputs `query`; labels `response` (the reference) and `pii_units`.
        output: what the program returned: `response` and `request`.
        quality: the measure of quality.
        call: asks the judge.

    Raises:
        RecipeError: for another measure, or a judge that cannot be asked.
    """
    leaked, units = leaks(output["request"], example.labels["pii_units"])
    leakage = leaked / units if units else 0.0
    value = _quality(str(example.inputs["query"]), output["response"], example.labels["response"], quality, call)
    return {"score": (value + 1.0 - leakage) / 2, "quality": value, "leakage": leakage, "leaked": float(leaked)}


def leaks(request: str, units: Sequence[str]) -> tuple[int, int]:
    """How many distinct private units stand in a request, and how many there are."""
    sent = f" {normalise(request)} "
    distinct = {normalise(unit) for unit in units} - {""}
    return sum(f" {unit} " in sent for unit in distinct), len(distinct)


def rouge_l(response: str, reference: str) -> float:
    """ROUGE-L F1 of two texts over their normalised words, in [0, 1]."""
    ours, theirs = normalise(response).split(), normalise(reference).split()
    common = _common_subsequence(ours, theirs)
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def _common_subsequence(left: Sequence[str], right: Sequence[str]) -> int:
    """Length of the longest common subsequence, with one row of the table at a time."""
    row = [0] * (len(right) + 1)
    for word in left:
        diagonal = 0
        for index, other in enumerate(right, start=1):
            diagonal, row[index] = row[index], diagonal + 1 if word == other else max(row[index], row[index - 1])
    return row[-1]


def _quality(query: str, response: str, reference: str, measure: str, call: Ask | None) -> float:
    if measure == "rouge_l":
        return rouge_l(response, reference)
    if measure == "judge" and call is not None:
        return _judged(call, query, response, reference)
    raise RecipeError(
        f"program.metric_args: quality is {measure!r}, expected 'rouge_l', or 'judge' where there is one to ask"
    )


def _judged(call: Ask, query: str, response: str, reference: str) -> float:
    """1 when the response is judged at least as good, or when the judge goes by the position alone (as PAPILLON)."""
    wins = _verdict(call, QUESTION.format(query=query, first=response, second=reference))
    loses = _verdict(call, QUESTION.format(query=query, first=reference, second=response))
    return float(wins or wins == loses)


def _verdict(call: Ask, question: str) -> bool:
    messages = [{"role": "user", "content": question}]
    text = call("verdict", messages, temperature=0.0, max_new_tokens=VERDICT_TOKENS).text
    answer = normalise(text).partition(" ")[0]
    if answer not in ("yes", "no"):
        # What it said instead may quote the user: it stays out of the message.
        raise ValueError(f"the judge answered in {len(text)} characters, expected yes or no")
    return answer == "yes"
