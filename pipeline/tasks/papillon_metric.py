"""PAPILLON's metric: (quality + (1 - leakage)) / 2.

Leakage is the share of the example's private units found in the outgoing request, as whole words of the normalised
text (case, punctuation and white space do not count). Quality has two measures, and `quality` in the recipe's
`metric_args` says which:

- `rouge_l`: ROUGE-L F1 (Lin 2004) of the answer against the reference answer. It needs no LM, and rewards wording.
- `judge`: an LM at an OpenAI-compatible endpoint says whether the answer is at least as good as the reference, asked in
  both orders: 1 when it wins first, or when the two verdicts agree with each other only in the position; else 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from pipeline.tasks.text import normalise
from schemas.errors import RecipeError

if TYPE_CHECKING:
    from pipeline.tasks.call import Example
    from stages.engines.endpoint import Endpoint

Quality = Literal["rouge_l", "judge"]
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
    judge: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Score with the parts `quality`, `leakage` and `leaked` (units that went out).

    Args:
        example: inputs `query`; labels `response` (the reference) and `pii_units`.
        output: what the program returned: `response` and `request`.
        quality: the measure of quality.
        judge: for `judge`: `url`, `model` and, where the endpoint wants a key, `api_key_env`.

    Raises:
        RecipeError: when `quality` and `judge` do not fit.
    """
    leaked, units = leaks(output["request"], example.labels["pii_units"])
    leakage = leaked / units if units else 0.0
    value = _quality(str(example.inputs["query"]), output["response"], example.labels["response"], quality, judge)
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


def _quality(query: str, response: str, reference: str, measure: str, judge: Mapping[str, str] | None) -> float:
    if measure == "rouge_l" and judge is None:
        return rouge_l(response, reference)
    if measure == "judge" and judge and {"url", "model"} <= set(judge) <= {"url", "model", "api_key_env"}:
        return _judged(_endpoint(judge["url"], judge["model"], judge.get("api_key_env")), query, response, reference)
    raise RecipeError(
        f"program.metric_args: quality is {measure!r} and judge is {judge!r}, expected quality 'rouge_l' alone, or "
        "quality 'judge' with judge = { url, model } and, where a key is needed, api_key_env"
    )


def _judged(endpoint: Endpoint, query: str, response: str, reference: str) -> float:
    """1 when the response is judged at least as good, or when the judge goes by the position alone (as PAPILLON)."""
    wins = _verdict(endpoint, QUESTION.format(query=query, first=response, second=reference))
    loses = _verdict(endpoint, QUESTION.format(query=query, first=reference, second=response))
    return float(wins or wins == loses)


def _verdict(endpoint: Endpoint, question: str) -> bool:
    from stages.engines.interface import Sampling

    sampling = Sampling(temperature=0.0, max_new_tokens=VERDICT_TOKENS)
    text, _ = endpoint.complete([{"role": "user", "content": question}], sampling)
    answer = normalise(text).partition(" ")[0]
    if answer not in ("yes", "no"):
        # What it said instead may quote the user: it stays out of the message.
        raise ValueError(f"the judge {endpoint.model} answered in {len(text)} characters, expected yes or no")
    return answer == "yes"


@cache
def _endpoint(url: str, model: str, api_key_env: str | None) -> Endpoint:
    from stages.engines.endpoint import Endpoint

    return Endpoint("judge", url, model, api_key_env)
