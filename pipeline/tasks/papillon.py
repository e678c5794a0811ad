"""PAPILLON (Li et al. 2024, arXiv 2410.17127): use a strong but untrusted LM without telling it what is private.

Two modules of the trained model around an LM that is not trained. `craft` turns the user's private query into a request
without private information; the LM `untrusted` answers the request; `aggregate` answers the user from that answer and
the query. Demonstrations for both stand here, as chat turns: they are made up and hold no real person's data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.tasks.call import Call, chat
from pipeline.tasks.text import normalise
from schemas.errors import ParseError, RecipeError

UNTRUSTED = "untrusted"
CRAFT = (
    "Rewrite the user's message as a request to an outside assistant. Leave out every name, place, employer, date, "
    "number and other private detail; keep what is needed to help. Write the request and nothing else."
)
AGGREGATE = (
    "Answer the user's message. Use the outside assistant's answer to a similar request, and put the user's own "
    "details back in."
)
LETTER = (
    "I'm Dana Whitfield, a nurse at Marlow General. Write two sentences asking my manager Tom Reyes for Friday off."
)
CRAFT_DEMOS = (
    (
        LETTER,
        "Write two sentences in which an employee asks their manager for a day off.",
    ),
    (
        "Fix the grammar: my name are Ilya Brandt and I lives in Osterby since 2009.",
        "How do I correct the grammar of a sentence that gives a person's name and where they have lived since a year?",
    ),
    (
        "what is a good name for the bakery that me and my wife Rosa open in Kelmore?",
        "Suggest some good names for a family bakery in a small town.",
    ),
)
AGGREGATE_DEMOS = (
    (
        LETTER,
        "Dear [Manager], I would like to request a day off this week. Please let me know whether that is possible.",
        "Dear Tom Reyes, I would like to request this Friday off. Please let me know whether that is possible. "
        "Dana Whitfield",
    ),
)


@dataclass(frozen=True)
class Program:
    """Answers `query`; the output holds the answer and the request that went out."""

    max_new_tokens: Mapping[str, int]
    modules: tuple[str, ...] = ("craft", "aggregate")

    async def __call__(self, inputs: dict[str, Any], call: Call) -> dict[str, str]:
        """Run on one query."""
        query = str(inputs["query"])
        craft = chat(CRAFT, list(CRAFT_DEMOS), query)
        request = await call("craft", craft, parse=_request, inputs={"query": query}, **self._length("craft"))
        asked: list[dict[str, str]] = [{"role": "user", "content": request.value}]
        answer = await call(UNTRUSTED, asked, lm=UNTRUSTED, inputs={"request": request.value})
        seen = {"query": query, "answer": answer.text}
        shots = [(_both(message, got), good) for message, got, good in AGGREGATE_DEMOS]
        aggregate = chat(AGGREGATE, shots, _both(query, answer.text))
        final = await call("aggregate", aggregate, parse=_response, inputs=seen, **self._length("aggregate"))
        return {"response": final.value, "request": request.value}

    def _length(self, module: str) -> dict[str, Any]:
        return {"max_new_tokens": self.max_new_tokens[module]} if module in self.max_new_tokens else {}


def program(*, max_new_tokens: Mapping[str, int] | None = None) -> Program:
    """The pipeline.

    Args:
        max_new_tokens: longest completion by module, `craft` or `aggregate`, where it is not the recipe's.

    Raises:
        RecipeError: for a module that it does not have.
    """
    lengths = dict(max_new_tokens or {})
    if unknown := sorted(set(lengths) - set(Program.modules)):
        raise RecipeError(
            f"program.args.max_new_tokens: there is no module {', '.join(unknown)}; modules are "
            f"{' and '.join(Program.modules)} (the length of '{UNTRUSTED}' stands in [lms.{UNTRUSTED}])"
        )
    return Program(lengths)


def _both(query: str, answer: str) -> str:
    return f"Message: {query}\n\nOutside assistant's answer: {answer}"


def _request(completion: str) -> str:
    return _words(completion, "request")


def _response(completion: str) -> str:
    return _words(completion, "response")


def _words(completion: str, field: str) -> str:
    """The completion as it is, which must hold a word."""
    if not normalise(completion):
        raise ParseError([], [field])
    return completion.strip()
